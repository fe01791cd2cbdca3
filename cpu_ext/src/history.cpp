// Token counts in an open-addressing table. See history.h.
#include "flare/history.h"

#include <algorithm>

namespace flare {

void History::clear() {
  entries_.clear();
  log_.clear();
  std::fill(table_.begin(), table_.end(), 0);
}

void History::prepare(size_t count) {
  const size_t needed = entries_.size() + count;
  if (entries_.capacity() < needed) entries_.reserve(std::max(needed, 2 * entries_.size()));
  if (log_.capacity() < log_.size() + count) {
    log_.reserve(std::max(log_.size() + count, 2 * log_.size()));
  }
  if (table_.size() >= 2 * needed) return;
  size_t size = 64;
  while (size < 4 * needed) size *= 2;
  table_.assign(size, 0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    table_[place(entries_[i].id)] = static_cast<int32_t>(i + 1);
  }
}

// Where the id is in the table, or the free place where it belongs. The table is never full.
size_t History::place(int32_t id) const {
  const size_t mask = table_.size() - 1;
  size_t at = (static_cast<uint32_t>(id) * 2654435761u >> 8) & mask;
  while (table_[at] != 0 && entries_[static_cast<size_t>(table_[at] - 1)].id != id) {
    at = (at + 1) & mask;
  }
  return at;
}

History::Entry& History::find(int32_t id) {
  const size_t at = place(id);
  if (table_[at] == 0) {
    entries_.push_back({id, 0, 0});
    table_[at] = static_cast<int32_t>(entries_.size());
  }
  return entries_[static_cast<size_t>(table_[at] - 1)];
}

void History::rewind(size_t count) {
  for (; count > 0 && !log_.empty(); --count) {
    --find(log_.back()).output;
    log_.pop_back();
  }
}

}  // namespace flare
