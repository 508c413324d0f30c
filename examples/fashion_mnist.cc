// Trains a convolutional network on Fashion-MNIST as a pipeline over logical devices of the CPU or over GPUs, and draws
// what happened.
// ./quickstart.sh builds and runs it; --help says all of its arguments.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "fashion_mnist_compare.h"
#include "fashion_mnist_data.h"
#include "fashion_mnist_devices.h"
#include "fashion_mnist_model.h"
#include "fashion_mnist_report.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/sluice.h"

using namespace sluice;

namespace {

/// Checkpoints of an earlier run with this folder that are of later steps: this run writes its own.
void remove_later(const std::string& out, std::int64_t step) {
  char last[40];
  std::snprintf(last, sizeof last, "step-%08lld.safetensors", static_cast<long long>(step));
  for (const auto& file : std::filesystem::directory_iterator(out)) {
    const std::string name = file.path().filename();
    if (file.is_regular_file() && name.starts_with("step-") && name.ends_with(".safetensors") && name > last) {
      std::filesystem::remove(file);
    }
  }
}

int train(const Arguments& a) {
  const Cards cards = find_cards(a);
  Engine engine(engine_options(a, cards));
  set_default_engine(&engine);
  check_devices(a, engine);
  const nn::Sequential network = make_network(a);
  if (a.plan) {
    std::fputs(to_text(make_plan(a, network)).c_str(), stdout);
    return 0;
  }
  if (a.compare) {
    compare(a, engine);
    return 0;
  }
  const nn::Split images = read_images(a);
  make_folder(a.out);

  const Choice choice = choose(a, network);
  const parallel::Candidate& chosen = choice.candidate;
  if (!choice.layers.empty()) {
    std::printf("plan            %s, layers %s: %.0f images/s, at most %s on a device\n", chosen.schedule.c_str(),
                cut_to_text(chosen, static_cast<int>(network.size())).c_str(), chosen.throughput,
                bytes_in_words(*std::ranges::max_element(chosen.peak)).c_str());
  }
  const parallel::Schedule schedule = chosen.make();
  parallel::Pipeline pipeline = make_pipeline(a, network, chosen);
  nn::Loader loader = training_loader(a, images.train);
  const std::int64_t per_epoch = loader.size(), total = per_epoch * a.epochs;
  nn::Optimizer opt(network, nn::Sgd{.lr = nn::linear(a.lr, 0.1 * a.lr, total), .momentum = 0.9});
  nn::Log log(a.log, {.tensorboard = a.tensorboard});
  if (!a.resume.empty()) {
    int batch = 0;
    std::uint64_t seed = 0;
    nn::load(a.resume, {{"batch", batch}, {"seed", seed}});
    if (batch != a.batch || seed != a.seed)
      throw BadInput(a.resume + ": made with --batch " + std::to_string(batch) + " --seed " + std::to_string(seed));
    nn::load(a.resume, {{"net", network}, {"opt", opt}, {"data", loader}, {"log", log}});
    if (opt.steps() > total)
      throw BadInput(a.resume + ": is at step " + std::to_string(opt.steps()) + ", past the " + std::to_string(total) +
                     " wanted");
  }

  std::int64_t weights = 0;
  for (const nn::Named& p : nn::parameters(network)) weights += p.state->shape.count();
  std::printf(
      "Fashion-MNIST   %lld training images; network with %lld weights; %d stage%s, %d microbatches of %d, %s\n",
      static_cast<long long>(loader.samples()), static_cast<long long>(weights), pipeline.stages(),
      pipeline.stages() == 1 ? "" : "s", chosen.microbatches, a.batch / chosen.microbatches, chosen.schedule.c_str());

  // The last steps are traced; the loss is read a few steps late, so that pushing runs ahead of the devices.
  constexpr std::int64_t traced = 16;
  std::uint64_t first_traced = 0;
  std::deque<NDArray> losses;
  double shown_loss = 0;
  const std::int64_t begun_at = opt.steps();
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const auto read_loss = [&] {
    const double loss = losses.front().item<double>();
    losses.pop_front();
    if (!std::isfinite(loss))
      throw std::runtime_error("training failed: the loss is " + std::to_string(loss) + "; try a smaller --lr");
    shown_loss = shown_loss == 0 ? loss : 0.98 * shown_loss + 0.02 * loss;
  };
  const nn::Saved everything{{"net", network}, {"opt", opt},       {"data", loader},
                             {"log", log},     {"batch", a.batch}, {"seed", a.seed}};
  if (a.every > 0) remove_later(a.out, opt.steps());
  nn::Checkpoints checkpoints(a.out, everything, {.every = std::max(a.every, 1)});
  std::optional<nn::Interrupt> interrupt(std::in_place);
  const bool profiled = a.profile && total - begun_at > 8 + traced;
  if (a.profile && !profiled) std::printf("profile         none: of %lld steps at least\n", 9LL + traced);
  nn::Profile profile(profiled);
  nn::Progress progress("training", total, {.samples = static_cast<double>(a.batch)}, begun_at);
  while (profile.step(), opt.steps() < total && !*interrupt) {
    const auto [x, y, first] = loader.next();
    const NDArray pictures = x.unsqueeze(1);
    if (first_traced == 0 && (!profiled || profile.done()) && total - opt.steps() <= traced) {
      pipeline.forward(pictures).wait();  // what was pushed before is no part of the traced steps
      engine.start_trace();
      first_traced = pipeline.step_number() + 1;
    }
    losses.push_back(
        pipeline.step(pictures, y, {.microbatches = chosen.microbatches, .schedule = schedule, .optimizer = &opt}));
    log.add(opt.steps(), {{"loss", losses.back()}});
    if (a.every > 0) checkpoints.step(opt.steps());
    if (losses.size() > 3) read_loss();
    char text[96];
    std::snprintf(text, sizeof text, "epoch %lld/%d  loss %.3f",
                  static_cast<long long>((opt.steps() - 1) / per_epoch + 1), a.epochs, shown_loss);
    progress.show(opt.steps(), text);
  }
  while (!losses.empty()) read_loss();
  engine.wait_all();
  const double elapsed = seconds();
  const std::vector<TraceEvent> events = first_traced ? engine.stop_trace() : std::vector<TraceEvent>{};
  progress.leave();
  std::fputs(profile.table().c_str(), stdout);
  checkpoints.wait();
  nn::save(a.save, everything);
  if (const int status = interrupt->status()) {
    std::printf("interrupted after step %lld of %lld\n", static_cast<long long>(opt.steps()),
                static_cast<long long>(total));
    std::printf("checkpoint      %s   (go on with --resume %s)\n", a.save.c_str(), a.save.c_str());
    return status;
  }
  interrupt.reset();  // what follows is ended by a signal as usual
  std::printf("test accuracy   %.4f      (%lld images)\n", test_accuracy(pipeline, images.test),
              static_cast<long long>(images.test.x.size(0)));
  if (opt.steps() > begun_at) {
    std::printf("throughput      %.0f images/s\n", static_cast<double>((opt.steps() - begun_at) * a.batch) / elapsed);
    report_timeline(a, choice, pipeline, events, first_traced, engine, cards);
  }
  std::printf("model           %s\n", a.save.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("SLUICE_REPORT", "1", 0);  // a line says what the run was made with: docs/same-numbers.md
  int status = 1;
  try {
    status = train(parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
    status = exit_status(e);
  }
  set_default_engine(nullptr);
  return status;
}
