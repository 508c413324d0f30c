#include "sluice/nn/net/mode.h"

#include <string>

#include "sluice/ndarray/scope_flags.h"
#include "sluice/resources/draw_notes.h"

namespace sluice::nn {
namespace {

constinit thread_local Training* innermost = nullptr;
constinit thread_local std::int64_t microbatch = 0;

std::uint64_t hash(std::string_view text) {  // FNV-1a, the same on every machine
  std::uint64_t h = 14695981039346656037ULL;
  for (const char c : text) h = (h ^ static_cast<std::uint8_t>(c)) * 1099511628211ULL;
  return h;
}

}  // namespace

Training::Training(RandomStream& stream) : outer_(innermost), key_(stream.next()) {
  ScopeState& scope = current_scope();
  if (scope.flags & kEvaluationFlag) scope.flags &= ~(kEvaluationFlag | kNoGradFlag);
  scope.flags |= kTrainingFlag;
  innermost = this;
}
Training::~Training() { innermost = outer_; }

Training* Training::current() noexcept { return innermost; }

RandomKey Training::next_key(const std::string& path) {
  std::uint32_t& uses = uses_[std::to_string(microbatch) + ":" + path];
  const std::uint32_t use = uses;
  if (!DrawNotes::still()) ++uses;  // a dry run changes nothing
  const RandomStream of_layer =
      RandomStream(key_.seed, key_.stream).derive(hash(path), static_cast<std::uint64_t>(microbatch) << 32 | use);
  RandomKey key = of_layer.state();
  key.draw = key_.draw;
  return key;
}

Evaluation::Evaluation(EvaluationOptions options) : outer_(innermost) {
  ScopeState& scope = current_scope();
  scope.flags = (scope.flags & ~kTrainingFlag) | kEvaluationFlag;
  if (!options.gradients) scope.flags |= kNoGradFlag;
  innermost = nullptr;
}
Evaluation::~Evaluation() { innermost = outer_; }

Microbatch::Microbatch(std::int64_t k) : outer_(microbatch) {
  if (k < 0) throw UsageError("[nn::Microbatch] number " + std::to_string(k));
  microbatch = k;
}
Microbatch::~Microbatch() { microbatch = outer_; }

bool is_training(const char* layer, std::source_location where) {
  const std::uint32_t flags = current_scope().flags;
  if (flags & kTrainingFlag) return true;
  if ((flags & (kEvaluationFlag | kNoGradFlag)) == 0) {
    throw ArrayError(layer, where,
                     "it is called where gradients are recorded, and neither nn::Training nor nn::Evaluation is in "
                     "force: which is meant?");
  }
  return false;
}

RandomStream training_stream(const char* layer, const Place& place, std::source_location where) {
  if (!place.known()) {
    throw ArrayError(layer, where,
                     "no nn::initialise or nn::load reached it, so it has no name for its random numbers: is it a "
                     "field of the net, and not made in its call operator or captured by a lambda?");
  }
  // The thread that computes a checkpoint again gives the numbers that were noted, whatever the stream.
  if (DrawNotes::again()) return RandomStream(0);
  if (Training* const now = innermost) return {now->next_key(place.path()), RandomStream::Undivided{}};
  throw ArrayError(layer, where,
                   "the nn::Training scope is of another thread: make one on the thread that calls the net");
}

}  // namespace sluice::nn
