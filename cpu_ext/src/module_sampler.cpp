// Binding of the sampler.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "flare/context.h"
#include "flare/sampler.h"

namespace flare {
namespace {

using Ints = Array<const int32_t, 1>;
using Flags = Array<const uint8_t, 1>;
using Logits = Array<const float, 2>;
using Masks = Array<const uint32_t, 2>;
using OutInts = Array<int32_t, 1>;
using OutFloats = Array<float, 1>;
using OutIntTable = Array<int32_t, 2>;
using OutFloatTable = Array<float, 2>;

template <typename A>
void check_length(const A& array, size_t count, const char* name) {
  if (array.shape(0) < count) {
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(count) +
                                " entries, not " + std::to_string(array.shape(0)));
  }
}

template <typename A>
void check_table(const A& array, size_t count, const char* name) {
  check_length(array, count, name);
  if (array.shape(1) != kMaxAlternatives) {
    throw std::invalid_argument(std::string(name) + " must be 20 wide");
  }
}

void check_logits(const Sampler& sampler, const Logits& logits) {
  if (static_cast<int64_t>(logits.shape(1)) != sampler.logits_width()) {
    throw std::invalid_argument("logits must be " + std::to_string(sampler.logits_width()) +
                                " wide, not " + std::to_string(logits.shape(1)));
  }
}

void check_masks(const Sampler& sampler, const Masks& masks, const std::optional<Ints>& rows,
                 size_t count) {
  if (static_cast<int64_t>(masks.shape(1)) != sampler.mask_words()) {
    throw std::invalid_argument("masks must be " + std::to_string(sampler.mask_words()) +
                                " words wide, not " + std::to_string(masks.shape(1)));
  }
  if (!rows) throw std::invalid_argument("masks need mask_rows");
  check_length(*rows, count, "mask_rows");
}

template <typename T>
std::vector<T> copy(const Array<const T, 1>& array) {
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

void set_slot(Sampler& self, int64_t slot, double temperature, int64_t top_k, double top_p,
              double min_p, double presence_penalty, double frequency_penalty,
              double repetition_penalty, uint64_t seed, const Ints& bias_ids,
              const Array<const float, 1>& bias_values, const Ints& stop_ids,
              const Ints& prompt_ids, const Ints& output_ids) {
  if (top_k < 0) throw std::invalid_argument("top_k is out of range");
  Slot state;
  SlotParameters& p = state.parameters;
  p.temperature = static_cast<float>(temperature);
  p.top_k = static_cast<int>(std::min<int64_t>(top_k, 1 << 30));
  p.top_p = static_cast<float>(top_p);
  p.min_p = static_cast<float>(min_p);
  p.presence_penalty = static_cast<float>(presence_penalty);
  p.frequency_penalty = static_cast<float>(frequency_penalty);
  p.repetition_penalty = static_cast<float>(repetition_penalty);
  p.seed = seed;
  state.bias_ids = copy(bias_ids);
  state.bias_values = copy(bias_values);
  state.stop_ids = copy(stop_ids);
  self.set(slot, std::move(state), copy(prompt_ids), copy(output_ids));
}

void sample(Sampler& self, const Logits& logits, const Ints& rows, const Ints& slots,
            const Ints& positions, const Flags& forbid_stop, const Ints& top_n,
            const OutInts& tokens, const OutFloats& logprobs, const OutIntTable& top_ids,
            const OutFloatTable& top_logprobs, const std::optional<Masks>& masks,
            const std::optional<Ints>& mask_rows) {
  const size_t n = rows.shape(0);
  check_logits(self, logits);
  if (masks) check_masks(self, *masks, mask_rows, n);
  check_length(slots, n, "slots");
  check_length(positions, n, "positions");
  check_length(forbid_stop, n, "forbid_stop");
  check_length(top_n, n, "top_n");
  check_length(tokens, n, "tokens");
  check_length(logprobs, n, "logprobs");
  check_table(top_ids, n, "top_ids");
  check_table(top_logprobs, n, "top_logprobs");
  const SampleRequest request{
      logits.data(),      static_cast<int64_t>(logits.shape(0)), static_cast<int64_t>(n),
      rows.data(),        slots.data(),                          positions.data(),
      forbid_stop.data(), top_n.data(),
      masks ? masks->data() : nullptr,
      masks ? static_cast<int64_t>(masks->shape(0)) : 0,
      masks ? mask_rows->data() : nullptr,
      tokens.data(),      logprobs.data(),                       top_ids.data(),
      top_logprobs.data()};
  const nb::gil_scoped_release release;
  self.sample(request);
}

void score(Sampler& self, const Logits& logits, const Ints& rows, const Ints& targets,
           const Ints& top_n, const OutFloats& logprobs, const OutIntTable& top_ids,
           const OutFloatTable& top_logprobs) {
  const size_t n = rows.shape(0);
  check_logits(self, logits);
  check_length(targets, n, "targets");
  check_length(top_n, n, "top_n");
  check_length(logprobs, n, "logprobs");
  check_table(top_ids, n, "top_ids");
  check_table(top_logprobs, n, "top_logprobs");
  const ScoreRequest request{logits.data(),
                             static_cast<int64_t>(logits.shape(0)),
                             static_cast<int64_t>(n),
                             rows.data(),
                             targets.data(),
                             top_n.data(),
                             logprobs.data(),
                             top_ids.data(),
                             top_logprobs.data()};
  const nb::gil_scoped_release release;
  self.score(request);
}

void new_sampler(Sampler* self, std::shared_ptr<ThreadPool> pool, const std::string& isa,
                 int64_t vocab_size, int64_t logits_width, int64_t slots) {
  new (self) Sampler(std::move(pool), parse_isa(isa.c_str()), vocab_size, logits_width, slots);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", &new_sampler, nb::arg("pool"), nb::arg("isa"), nb::arg("vocab_size"),
           nb::arg("logits_width"), nb::arg("slots"))
      .def("set", &set_slot, nb::arg("slot"), nb::arg("temperature"), nb::arg("top_k"),
           nb::arg("top_p"), nb::arg("min_p"), nb::arg("presence_penalty"),
           nb::arg("frequency_penalty"), nb::arg("repetition_penalty"), nb::arg("seed"),
           nb::arg("bias_ids"), nb::arg("bias_values"), nb::arg("stop_ids"),
           nb::arg("prompt_ids"), nb::arg("output_ids"))
      .def("clear", &Sampler::clear, nb::arg("slot"))
      .def("rewind", &Sampler::rewind, nb::arg("slot"), nb::arg("count"))
      .def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("slots"),
           nb::arg("positions"), nb::arg("forbid_stop"), nb::arg("top_n"),
           nb::arg("tokens").noconvert(), nb::arg("logprobs").noconvert(),
           nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert(),
           nb::arg("masks") = nb::none(), nb::arg("mask_rows") = nb::none())
      .def("score", &score, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("targets"),
           nb::arg("top_n"), nb::arg("logprobs").noconvert(), nb::arg("top_ids").noconvert(),
           nb::arg("top_logprobs").noconvert());
}

}  // namespace flare
