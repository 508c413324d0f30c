// OpenMP's side of bench/engine.sh: tasks with `depend`. Built by GCC for libgomp and by clang for libomp.
//   ENGINE_TEAM   counted-in: a team of THREADS, the pushing thread in it; besides: of one more, as the other sides
//                 have it, except for work_*, where that thread would run bodies too
// A team of one runs each op inside its push (libomp, without a look at dependencies; libgomp once 64 wait), so at one
// thread it shows what a call costs rather than what a scheduler does.
#include <cstdlib>
#include <cstring>

#include "engine_patterns.h"

namespace {

using patterns::Kind;
using patterns::Pattern;

char variables[1024];

int besides() {
  const char* team = std::getenv("ENGINE_TEAM");
  return team != nullptr && std::strcmp(team, "besides") == 0 ? 1 : 0;
}

class OpenMp {
 public:
  explicit OpenMp(int threads) : threads_(threads + besides()) {}

  /// Dependencies are between the tasks of one parent, so that two pushers cannot share any.
  static bool has(const Pattern& pattern) {
    if (besides() != 0 && pattern.body_ns != 0) return false;
    return pattern.kind == Kind::push || pattern.kind == Kind::latency;
  }

  template <class F>
  void session(const F& f) {
#pragma omp parallel num_threads(threads_)
#pragma omp single
    f();
  }
  template <class Body>
  void none(const Body& body) {
#pragma omp task firstprivate(body)
    body();
  }
  template <class Body>
  void read(int v, const Body& body) {
#pragma omp task firstprivate(body) depend(in : variables[v])
    body();
  }
  template <class Body>
  void write(int v, const Body& body) {
#pragma omp task firstprivate(body) depend(out : variables[v])
    body();
  }
  template <class Body>
  void update(int v, const Body& body) {
#pragma omp task firstprivate(body) depend(inout : variables[v])
    body();
  }
  template <class Body>
  void mixed(int, const patterns::Pick& p, const Body& body) {
#pragma omp task firstprivate(body) depend(in : variables[p[0]], variables[p[1]]) depend(inout : variables[p[2]])
    body();
  }
  void finish() {
#pragma omp taskwait
  }
  void finish(int) { finish(); }

 private:
  int threads_;
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<OpenMp>(argc, argv); }
