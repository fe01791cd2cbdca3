// Drawing from a row: partial selection, never a full sort. See draw.h and sampler.h.
#include "flare/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "flare/philox.h"

namespace flare {
namespace {

constexpr int kSumSpan = 256;  // of Kernels::exponentials
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Four sums, so that additions need not wait for each other; the order is fixed.
double mass(const std::vector<Candidate>& candidates) {
  double sums[4] = {};
  for (size_t i = 0; i < candidates.size(); ++i) sums[i % 4] += candidates[i].weight;
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

Draw::Draw(const Kernels& kernels, int vocab)
    : kernels_(&kernels),
      vocab_(vocab),
      copy_(static_cast<size_t>(vocab)),
      weights_(static_cast<size_t>(vocab)),
      sums_(static_cast<size_t>(vocab / kSumSpan + 1)),
      ids_(static_cast<size_t>(vocab + 16)) {
  kept_.reserve(static_cast<size_t>(vocab));
  order_.reserve(static_cast<size_t>(vocab));
}

float* Draw::copy(const float* row) {
  std::memcpy(copy_.data(), row, copy_.size() * sizeof(float));
  return copy_.data();
}

int32_t Draw::token(const SlotParameters& p, const float* z, float maximum, int64_t position) {
  if (!(p.temperature > 0)) return kernels_->find(z, vocab_, maximum);
  const Row row{z, maximum, std::min(1.0f / p.temperature, 1e30f)};
  const double uniform = philox_uniform(p.seed, static_cast<uint64_t>(position));
  const bool top_k = p.top_k > 0 && p.top_k < vocab_;
  const bool top_p = p.top_p < 1;
  if (!top_k && !top_p && !(p.min_p > 0)) return draw_all(row, uniform);
  kept_.clear();
  if (top_k) take_top_k(row, p.top_k);
  if (top_p) take_top_p(row, p.top_p);
  if (p.min_p > 0) take_min_p(row, p.min_p);
  return draw_candidates(uniform);
}

double Draw::weigh_all(const Row& row, float* weights) {
  kernels_->exponentials(row.z, vocab_, row.maximum, row.inverse, weights, sums_.data());
  double total = 0;
  for (int i = 0; i * kSumSpan < vocab_; ++i) total += sums_[static_cast<size_t>(i)];
  return total;
}

int32_t Draw::draw_all(const Row& row, double uniform) {
  const double target = uniform * weigh_all(row, weights_.data());
  double sum = 0;
  int span = 0;
  for (;; ++span) {
    const double next = sum + sums_[static_cast<size_t>(span)];
    if (next > target || (span + 1) * kSumSpan >= vocab_) break;
    sum = next;
  }
  const int end = std::min(vocab_, (span + 1) * kSumSpan);
  for (int i = span * kSumSpan; i < end; ++i) {
    sum += weights_[static_cast<size_t>(i)];
    if (sum > target) return i;
  }
  // Rounding left the target behind the span: the last id of it that has a weight.
  int i = end - 1;
  while (weights_[static_cast<size_t>(i)] <= 0) --i;
  return i;
}

int32_t Draw::draw_candidates(double uniform) const {
  const double target = uniform * mass(kept_);
  double sum = 0;
  int32_t last = kept_.front().id;
  for (const Candidate& c : kept_) {
    if (c.weight > 0) last = c.id;
    sum += c.weight;
    if (sum > target) return c.id;
  }
  return last;
}

// kept_ = the ids whose value is at least the threshold, with their logits and weights_.
void Draw::collect(const float* values, float threshold, const float* z) {
  const int count = kernels_->gather(values, vocab_, threshold, ids_.data());
  kept_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int32_t id = ids_[static_cast<size_t>(i)];
    kept_[static_cast<size_t>(i)] = {id, z[id], weights_[static_cast<size_t>(id)]};
  }
}

// kept_ = at least `count` of the highest logits, and all that equal or exceed any of them.
void Draw::collect_at_least(const Row& row, int count) {
  float below = 2;
  while (below < 1e6f && kernels_->count(row.z, vocab_, row.maximum - below) < count) below *= 2;
  collect(row.z, below < 1e6f ? row.maximum - below : -kInfinity, row.z);
}

void Draw::weigh_candidates(const Row& row) {
  float* values = weights_.data();
  const int count = static_cast<int>(kept_.size());
  for (int i = 0; i < count; ++i) values[i] = kept_[static_cast<size_t>(i)].logit;
  kernels_->exponentials(values, count, row.maximum, row.inverse, values, sums_.data());
  for (int i = 0; i < count; ++i) kept_[static_cast<size_t>(i)].weight = values[i];
}

void Draw::cut_after(const Candidate& last) {
  const auto worse = [&last](const Candidate& c) { return better(last, c); };
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(), worse), kept_.end());
}

void Draw::take_top_k(const Row& row, int k) {
  collect_at_least(row, k);
  if (static_cast<int>(kept_.size()) > k) {
    order_.assign(kept_.begin(), kept_.end());
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), better);
    cut_after(order_[static_cast<size_t>(k - 1)]);
  }
  weigh_candidates(row);
}

// The fewest best candidates whose share of the mass is at least top_p (one at least).
void Draw::take_top_p(const Row& row, float top_p) {
  if (!kept_.empty()) {
    cut_mass(row, top_p * mass(kept_));
    return;
  }
  const double target = top_p * weigh_all(row, weights_.data());
  for (const float threshold : {0x1p-5f, 0x1p-12f, 0.0f}) {
    collect(weights_.data(), threshold, row.z);
    if (mass(kept_) >= target) break;
  }
  cut_mass(row, target);
}

// order_ = the candidates among which the mass of the better ones reaches the target; returns the
// mass of all that are better than any of them.
double Draw::find_border(const Row& row, double target) {
  constexpr int kBuckets = 1024;
  constexpr float kPerUnit = 32;  // buckets per factor e of the weight
  if (kept_.size() < 512) {
    order_.assign(kept_.begin(), kept_.end());
    return 0;
  }
  const float scale = row.inverse * kPerUnit;
  const auto bucket = [&row, scale](const Candidate& c) {
    const float depth = (row.maximum - c.logit) * scale;  // not below 0, and monotonic
    return depth < kBuckets - 1 ? static_cast<int>(depth) : kBuckets - 1;
  };
  double masses[kBuckets] = {};
  for (const Candidate& c : kept_) masses[bucket(c)] += c.weight;
  double before = 0;
  int border = 0;
  while (border < kBuckets - 1 && before + masses[border] < target) before += masses[border++];
  order_.clear();
  for (const Candidate& c : kept_) {
    if (bucket(c) == border) order_.push_back(c);
  }
  return before;
}

// Keeps the fewest best candidates whose mass reaches the target (one at least). Quickselect by
// mass: halves the range that holds the border, then sorts the little that is left.
void Draw::cut_mass(const Row& row, double target) {
  double before = find_border(row, target);  // mass of those better than *first
  if (order_.empty()) return;
  auto first = order_.begin(), last = order_.end();
  while (last - first > 64) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, better);
    double half = 0;
    for (auto c = first; c != middle; ++c) half += c->weight;
    if (before + half >= target) {
      last = middle;
    } else {
      before += half;
      first = middle;
    }
  }
  std::sort(first, last, better);
  auto border = first;
  for (; border + 1 != last; ++border) {
    before += border->weight;
    if (before >= target) break;
  }
  cut_after(Candidate(*border));
}

void Draw::take_min_p(const Row& row, float min_p) {
  if (kept_.empty()) {
    // A little lower than the border, which the weights then decide.
    const float span = (std::log(min_p) - 0.01f) / row.inverse;
    const float slack = 1e-5f * std::fabs(row.maximum);
    collect(row.z, row.maximum + span - slack, row.z);
    weigh_candidates(row);
  }
  const auto light = [min_p](const Candidate& c) { return c.weight < min_p; };
  kept_.erase(std::remove_if(kept_.begin(), kept_.end(), light), kept_.end());
}

double Draw::log_sum(const float* z, float maximum) {
  return maximum + std::log(weigh_all({z, maximum, 1.0f}, nullptr));
}

const std::vector<Candidate>& Draw::best(const float* z, float maximum, int n) {
  n = std::min(n, vocab_);
  collect_at_least({z, maximum, 1.0f}, n);
  std::partial_sort(kept_.begin(), kept_.begin() + n, kept_.end(), better);
  kept_.erase(kept_.begin() + n, kept_.end());
  return kept_;
}

}  // namespace flare
