// MXNet's side of bench/engine.sh: its dependency engine alone, in the variant that the environment names:
//   MXNET_ENGINE_TYPE   ThreadedEnginePerDevice, or ThreadedEngine for the pooled one (MXNet's own variable)
//   ENGINE_OPERATORS    closure: MXEnginePushAsync for each op; cached: operators made beforehand, then Push
#include <dmlc/base.h>
#include <dmlc/logging.h>
#include <mxnet/c_api.h>
#include <mxnet/engine.h>

#include <cstring>
#include <string>

#include "engine_patterns.h"

namespace {

using mxnet::Engine;
using mxnet::engine::CallbackOnComplete;
using mxnet::engine::OprHandle;
using mxnet::engine::VarHandle;
using patterns::Kind;
using patterns::Pattern;

bool cached_operators() {
  const char* variant = std::getenv("ENGINE_OPERATORS");
  return variant != nullptr && std::strcmp(variant, "cached") == 0;
}

/// The wheel is built with GCC 4.8, whose std::function has the same four words as ours but passes its call's arguments
/// by value rather than by reference. So the words are set by hand.
struct OldFunction {
  const void* body;
  void* unused = nullptr;
  bool (*manage)(OldFunction*, const OldFunction*, int operation);
  void (*invoke)(const OldFunction*, mxnet::RunContext, CallbackOnComplete);
};
static_assert(sizeof(OldFunction) == sizeof(Engine::AsyncFn));

template <class Body>
Engine::AsyncFn old_function(const Body* body) {
  constexpr int kCopy = 2;
  OldFunction made{.body = body,
                   .manage =
                       [](OldFunction* to, const OldFunction* from, int operation) {
                         if (operation == kCopy) to->body = from->body;
                         return false;
                       },
                   .invoke = [](const OldFunction* self, mxnet::RunContext,
                                CallbackOnComplete done) { (*static_cast<const Body*>(self->body))(), done(); }};
  Engine::AsyncFn function;
  std::memcpy(static_cast<void*>(&function), &made, sizeof made);
  return function;
}

class Mxnet {
 public:
  explicit Mxnet(int threads) {
    setenv("MXNET_CPU_WORKER_NTHREADS", std::to_string(threads).c_str(), 1);
    engine_ = Engine::Get();
    for (int i = 0; i < 1024; ++i) variables_.push_back(engine_->NewVariable());
  }
  ~Mxnet() {
    for (OprHandle o : operators_) engine_->DeleteOperator(o);
    engine_->WaitForAll();
  }
  Mxnet(const Mxnet&) = delete;
  Mxnet& operator=(const Mxnet&) = delete;

  /// Two pushers that name several variables in different orders wait for each other for ever: the push takes its place
  /// in one variable's queue after another.
  static bool has(const Pattern& pattern) {
    if (pattern.kind == Kind::pushers) return pattern.shape != patterns::Shape::random;
    return pattern.kind != Kind::replay;
  }

  /// One operator for each set of variables that the pattern names, in the order in which `cached` numbers them.
  template <class Body>
  void prepare(const Pattern& pattern, const Body& body) {
    if (!cached_) return;
    const auto add = [&](const std::vector<VarHandle>& reads, const std::vector<VarHandle>& writes) {
      operators_.push_back(engine_->NewOperator(old_function(&body), reads, writes));
    };
    switch (pattern.shape) {
      case patterns::Shape::none:
        add({}, {});
        break;
      case patterns::Shape::chains:
        for (int i = 0; i < pattern.variables; ++i) add({}, {at(i)});
        break;
      case patterns::Shape::fan:
        add({}, {at(0)});
        add({at(0)}, {});
        break;
      case patterns::Shape::random:
        for (const patterns::Pick& p : patterns::picks()) add({at(p[0]), at(p[1])}, {at(p[2])});
        break;
    }
  }

  template <class F>
  void session(const F& f) {
    f();
  }
  template <class Body>
  void none(const Body& body) {
    push<0, 0>(0, {}, body);
  }
  template <class Body>
  void read(int v, const Body& body) {
    push<1, 0>(1, {at(v)}, body);
  }
  template <class Body>
  void write(int v, const Body& body) {
    push<0, 1>(0, {at(v)}, body);
  }
  template <class Body>
  void update(int v, const Body& body) {
    push<0, 1>(v, {at(v)}, body);
  }
  template <class Body>
  void mixed(int i, const patterns::Pick& p, const Body& body) {
    push<2, 1>(i, {at(p[0]), at(p[1]), at(p[2])}, body);
  }
  void finish() { engine_->WaitForAll(); }
  void finish(int v) { engine_->WaitForVar(at(v)); }

 private:
  VarHandle at(int v) const { return variables_[static_cast<std::size_t>(v)]; }

  /// `body` outlives the op: the pattern waits for all its ops.
  template <int reads, int writes, class Body>
  void push(int cached, std::array<VarHandle, reads + writes> variables, const Body& body) {
    static const mxnet::Context cpu = mxnet::Context::CPU();
    if (cached_) return engine_->Push(operators_[static_cast<std::size_t>(cached)], cpu);
    const auto run = [](void*, void* done, void* argument) {
      (*static_cast<const Body*>(argument))();
      (*static_cast<CallbackOnComplete*>(done))();
    };
    if (MXEnginePushAsync(run, const_cast<Body*>(&body), nullptr, &cpu, variables.data(), reads,
                          variables.data() + reads, writes) != 0) {
      std::fprintf(stderr, "error: MXEnginePushAsync: %s\n", MXGetLastError());
      std::exit(1);
    }
  }

  const bool cached_ = cached_operators();
  Engine* engine_ = nullptr;
  std::vector<VarHandle> variables_;
  std::vector<OprHandle> operators_;
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<Mxnet>(argc, argv); }
