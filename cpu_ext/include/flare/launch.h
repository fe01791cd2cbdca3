// Launches as they arrive from outside, and the checked steps that they become.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "flare/context.h"
#include "flare/kernels.h"

namespace flare {

struct Operand {
  enum class Kind { arena, weight, input, state };
  Kind kind;
  int64_t value = 0;  // byte offset in the arena, or index of the weight
  std::string name;   // of the input
};

using Attribute = std::variant<int64_t, double, std::string>;

struct LaunchSpec {
  std::string op;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::map<std::string, Attribute> attributes;
};

struct WeightView {
  const uint8_t* data;
  size_t bytes;
};

// The largest batch of a program (engine/ir/program.py, Domain).
struct Domain {
  int64_t tokens, seqs, logits;
};

enum class Rows { tokens, logits };

// Rows of a linear that the launch before leaves converted, instead of writing floats.
enum class Fed { none, prompt, all };

struct NormStep;

struct LinearStep {
  LinearArgs args;  // what depends on the batch is set at the replay
  Rows rows;
  Fed fed;                  // see link_feeds
  int area;                 // which of two places its converted rows have
  const LinearStep* feeds;  // the next step, or null
  const NormStep* norm;     // the step before, when threads may each make its only row, or null
};

// Steps cut their rows into `pieces` for each thread. A launch may say how many, and other
// parameters of its kernel (engine/kernels/parameters.py): they change no bit.
struct EmbedStep {
  Layout layout;
  const uint8_t* weight;
  int vocab, width;
  float* y;
  int pieces;
};
struct NormStep {
  RmsNormArgs args;
  Rows rows;
  int pieces;
  const LinearStep* feeds;  // the next step, or null
};
struct RopeStep {
  RopeStoreArgs args;
  int64_t angles;  // rows of the rope table
  int pieces;
};
struct AttentionStep {
  AttentionArgs args;  // partials are set at the replay
  int claim;  // items that a thread takes at a time
  const LinearStep* feeds;  // the next step, or null
};
struct GatherStep {
  const float* x;
  float* y;
  int width;
  int pieces;
};
using Step =
    std::variant<EmbedStep, NormStep, LinearStep, RopeStep, AttentionStep, GatherStep>;

// Checks every launch against the op set (engine/ir/ops.py), the context's sizes, the domain and
// the weights' sizes. Throws std::invalid_argument that names the launch and the fault.
std::vector<Step> read_launches(const std::vector<LaunchSpec>& launches, const Context& context,
                                const Domain& domain, const std::vector<WeightView>& weights);

// Finds launches whose output only the linear behind them reads: they convert the rows at once, and
// the floats are never written. `steps` keep their addresses from here on.
void link_feeds(std::vector<Step>& steps, const Domain& domain, Isa isa);

}  // namespace flare
