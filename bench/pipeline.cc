// Our side of bench/pipeline.sh: the quickstart's network on made-up images, trained as a pipeline.
//
//   bench_pipeline STAGES THREADS SCHEDULE MICROBATCHES BATCH STEPS
//
// Prints the images a second of STEPS steps, after a third as many to warm up. STAGES is 1 or 2, each on a logical
// device of its own. SCHEDULE has "+U" behind it where each stage steps its own weights as soon as they have their
// gradients (U actions); else one optimiser with a gate steps all.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <string>

#include "quickstart.h"

using namespace sluice;

namespace {

struct Settings {
  int stages, threads;
  std::string schedule;
  int microbatches, batch, steps;
};

void run(Settings s) {
  const bool own_steps = s.schedule.ends_with("+U");
  if (own_steps) s.schedule.resize(s.schedule.size() - 2);
  Engine engine({.threads = s.threads, .logical_cpus = s.stages});
  set_default_engine(&engine);
  {
    const nn::Sequential net = bench::quickstart_net();
    nn::Optimizer sgd(net, bench::quickstart_sgd());
    const auto [x, y] = bench::quickstart_batch(s.batch, s.stages);
    parallel::Pipeline pipeline(net, x.spec(), bench::quickstart_stages(s.stages));
    const parallel::PipelineStep options{.microbatches = s.microbatches,
                                         .schedule = parallel::make_schedule(s.schedule, s.stages, s.microbatches),
                                         .optimizer = &sgd,
                                         .gate = own_steps ? parallel::Gate::none : parallel::Gate::all};
    const auto train = [&](int steps) {
      std::deque<NDArray> losses;
      for (int i = 0; i < steps; ++i) {
        losses.push_back(pipeline.step(x, y, options));
        if (losses.size() > 3) losses.front().wait(), losses.pop_front();
      }
      engine.wait_all();
    };
    train(1 + s.steps / 3);
    const auto start = std::chrono::steady_clock::now();
    train(s.steps);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%.1f\n", s.steps * s.batch / seconds);
  }
  set_default_engine(nullptr);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::fprintf(stderr, "usage: bench_pipeline STAGES THREADS SCHEDULE MICROBATCHES BATCH STEPS\n");
    return 2;
  }
  run({std::atoi(argv[1]), std::atoi(argv[2]), argv[3], std::atoi(argv[4]), std::atoi(argv[5]), std::atoi(argv[6])});
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_pipeline: %s\n", e.what());
  return 1;
}
