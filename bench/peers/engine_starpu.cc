// StarPU's side of bench/engine.sh: implicit data dependencies (sequential consistency) and the eager scheduler, which
// has the least to do per task. Tasks are filled in by hand, which costs less than starpu_task_insert.
#include <starpu.h>

#include <cstdlib>

#include "engine_patterns.h"

namespace {

using patterns::Kind;
using patterns::Pattern;

void check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "error: %s: %d\n", what, status);
  std::exit(1);
}

/// One codelet for each set of access modes and each body; the body's closure is its argument.
template <class Body>
starpu_codelet* codelet(std::initializer_list<starpu_data_access_mode> modes) {
  auto* made = static_cast<starpu_codelet*>(std::calloc(1, sizeof(starpu_codelet)));
  starpu_codelet_init(made);
  made->where = STARPU_CPU;
  made->cpu_funcs[0] = [](void**, void* argument) { (*static_cast<const Body*>(argument))(); };
  made->nbuffers = static_cast<int>(modes.size());
  std::copy(modes.begin(), modes.end(), made->modes);
  return made;
}

class StarPu {
 public:
  explicit StarPu(int threads) : handles_(1024), values_(1024) {
    setenv("STARPU_SILENT", "1", 1);
    starpu_conf conf;
    starpu_conf_init(&conf);
    conf.ncpus = threads;
    conf.ncuda = conf.nopencl = 0;
    conf.sched_policy_name = "eager";
    conf.calibrate = conf.bus_calibrate = 0;
    check(starpu_init(&conf), "starpu_init");
    for (std::size_t i = 0; i < handles_.size(); ++i)
      starpu_variable_data_register(&handles_[i], STARPU_MAIN_RAM, reinterpret_cast<std::uintptr_t>(&values_[i]),
                                    sizeof values_[i]);
  }
  ~StarPu() {
    for (starpu_data_handle_t handle : handles_) starpu_data_unregister(handle);
    starpu_shutdown();
  }
  StarPu(const StarPu&) = delete;
  StarPu& operator=(const StarPu&) = delete;

  /// Two pushers that name several variables in different orders wait for each other for ever, as with MXNet.
  static bool has(const Pattern& pattern) {
    if (pattern.kind == Kind::pushers) return pattern.shape != patterns::Shape::random;
    return pattern.kind != Kind::replay;
  }

  template <class F>
  void session(const F& f) {
    f();
  }
  template <class Body>
  void none(const Body& body) {
    static starpu_codelet* const kind = codelet<Body>({});
    submit(kind, body, {});
  }
  template <class Body>
  void read(int v, const Body& body) {
    static starpu_codelet* const kind = codelet<Body>({STARPU_R});
    submit(kind, body, {at(v)});
  }
  template <class Body>
  void write(int v, const Body& body) {
    static starpu_codelet* const kind = codelet<Body>({STARPU_W});
    submit(kind, body, {at(v)});
  }
  template <class Body>
  void update(int v, const Body& body) {
    static starpu_codelet* const kind = codelet<Body>({STARPU_RW});
    submit(kind, body, {at(v)});
  }
  template <class Body>
  void mixed(int, const patterns::Pick& p, const Body& body) {
    static starpu_codelet* const kind = codelet<Body>({STARPU_R, STARPU_R, STARPU_RW});
    submit(kind, body, {at(p[0]), at(p[1]), at(p[2])});
  }
  void finish() { starpu_task_wait_for_all(); }
  void finish(int v) {
    starpu_data_acquire(at(v), STARPU_R);
    starpu_data_release(at(v));
  }

 private:
  starpu_data_handle_t at(int v) const { return handles_[static_cast<std::size_t>(v)]; }

  template <class Body>
  void submit(starpu_codelet* kind, const Body& body, std::initializer_list<starpu_data_handle_t> handles) {
    starpu_task* task = starpu_task_create();
    task->cl = kind;
    task->cl_arg = const_cast<Body*>(&body);  // outlives the task: the pattern waits for all its ops
    std::copy(handles.begin(), handles.end(), task->handles);
    check(starpu_task_submit(task), "starpu_task_submit");
  }

  std::vector<starpu_data_handle_t> handles_;
  std::vector<int> values_;
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<StarPu>(argc, argv); }
