// The tokens of a penalised sequence, counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flare {

class History {
 public:
  struct Entry {
    int32_t id;
    int32_t prompt;  // occurrences
    int32_t output;
  };

  void clear();
  // Makes room for `count` tokens, so that as many calls of add_* allocate nothing.
  void prepare(size_t count);
  void add_prompt(int32_t id) { ++find(id).prompt; }
  void add_output(int32_t id) {
    ++find(id).output;
    log_.push_back(id);
  }
  // Takes back the last `count` outputs (at most all).
  void rewind(size_t count);
  size_t outputs() const { return log_.size(); }
  // Every token once, in the order first seen; after a rewind both counts may be 0.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  Entry& find(int32_t id);
  size_t place(int32_t id) const;
  std::vector<Entry> entries_;
  std::vector<int32_t> table_;  // open addressing: index of the entry + 1; 0 is free
  std::vector<int32_t> log_;    // outputs, in order
};

}  // namespace flare
