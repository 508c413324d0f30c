// Sluice's side of bench/engine.sh: the engine as users get it, on the patterns of bench/peers/engine_patterns.h.
#include "peers/engine_patterns.h"

#include <optional>
#include <vector>

#include "sluice/engine/engine.h"

namespace {

using patterns::Kind;
using patterns::Pattern;

class Sluice {
 public:
  explicit Sluice(int threads)
      : engine_({.mode = sluice::EngineMode::threaded, .mode_given = true, .threads = threads}) {
    for (int i = 0; i < 1024; ++i) variables_.push_back(engine_.variable());
  }

#if __has_include("sluice/engine/program.h")
  static bool has(const Pattern&) { return true; }

  void build(const Pattern& pattern) {
    program_ = engine_.capture([&] { patterns::push_all(*this, pattern, 0, pattern.ops, patterns::Empty{}); });
  }
  void replay(int times) {
    for (int i = 0; i < times; ++i) engine_.replay(*program_);
    engine_.wait_all();
  }
#else
  static bool has(const Pattern& pattern) { return pattern.kind != Kind::replay; }
#endif

  template <class F>
  void session(const F& f) {
    f();
  }
  template <class Body>
  void none(const Body& body) {
    engine_.push(body, {});
  }
  template <class Body>
  void read(int v, const Body& body) {
    engine_.push(body, {sluice::read(at(v))});
  }
  template <class Body>
  void write(int v, const Body& body) {
    engine_.push(body, {sluice::write(at(v))});
  }
  template <class Body>
  void update(int v, const Body& body) {
    engine_.push(body, {sluice::update(at(v))});
  }
  template <class Body>
  void mixed(int, const patterns::Pick& p, const Body& body) {
    engine_.push(body, {sluice::read(at(p[0])), sluice::read(at(p[1])), sluice::update(at(p[2]))});
  }
  void finish() { engine_.wait_all({.help = false}); }  // T threads, and one that pushes
  void finish(int v) { engine_.wait(at(v), {.help = true}); }

 private:
  const sluice::Variable& at(int v) const { return variables_[static_cast<std::size_t>(v)]; }

  sluice::Engine engine_;
  std::vector<sluice::Variable> variables_;
#if __has_include("sluice/engine/program.h")
  std::optional<sluice::Program> program_;
#endif
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<Sluice>(argc, argv); }
