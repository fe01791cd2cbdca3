// Drawing one token from one row of processed logits, and ranking a row.
#pragma once

#include <cstdint>
#include <vector>

#include "flare/kernels.h"

namespace flare {

struct SlotParameters {
  float temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint64_t seed = 0;
};

struct Candidate {
  int32_t id;
  float logit;
  float weight;  // exp((logit - maximum) / temperature)
};

// Working memory of one thread, for rows of `vocab` logits, and what is done with it. No call but
// the constructor allocates.
class Draw {
 public:
  Draw(const Kernels& kernels, int vocab);

  // A private copy of a row, to be changed in place.
  float* copy(const float* row);
  // The token for a position: logits below minus infinity do not exist, `maximum` is finite.
  int32_t token(const SlotParameters& parameters, const float* z, float maximum, int64_t position);
  // log(sum(exp(z))).
  double log_sum(const float* z, float maximum);
  // The n highest logits, best first, ties by id; fewer when the row has fewer.
  const std::vector<Candidate>& best(const float* z, float maximum, int n);

 private:
  struct Row {
    const float* z;
    float maximum;
    float inverse;  // of the temperature
  };
  int32_t draw_all(const Row& row, double uniform);
  int32_t draw_candidates(double uniform) const;
  double weigh_all(const Row& row, float* weights);
  void weigh_candidates(const Row& row);
  void collect(const float* values, float threshold, const float* z);
  void collect_at_least(const Row& row, int count);
  void take_top_k(const Row& row, int k);
  void take_top_p(const Row& row, float top_p);
  void take_min_p(const Row& row, float min_p);
  double find_border(const Row& row, double target);
  void cut_mass(const Row& row, double target);
  void cut_after(const Candidate& last);

  const Kernels* kernels_;
  int vocab_;
  std::vector<float> copy_, weights_, sums_;
  std::vector<int32_t> ids_;
  std::vector<Candidate> kept_;   // ascending ids
  std::vector<Candidate> order_;  // being ranked
};

}  // namespace flare
