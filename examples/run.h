// What the examples that train have in common: options, a log, checkpoints, progress, a profile, a picture of the
// losses, and an orderly end at SIGINT and SIGTERM.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "loss_picture.h"
#include "sluice/sluice.h"

struct RunOptions {
  std::string name, out, log{}, tensorboard{};
  std::uint64_t seed = 1;
  long every = 200;
  bool resume = true, profile = false;

  explicit RunOptions(const std::string& program) : name(program), out("build/" + program) {
    ::setenv("SLUICE_REPORT", "1", 0);  // a line says what the run was made with: docs/same-numbers.md
  }
  void add_to(CLI::App& app) {
    app.add_option("--seed", seed, "of first weights, and of all else that is drawn");
    app.add_option("--out", out, "folder for the model, its checkpoints, and the picture of the losses");
    app.add_option("--log", log, "a CSV file with the numbers of each step (default: OUT/log.csv)");
    app.add_option("--tensorboard", tensorboard, "a folder for TensorBoard, with the same numbers");
    app.add_option("--every", every, "steps from one checkpoint to the next")->check(CLI::Range(1L, 1000000L));
    app.add_flag("--resume,!--no-resume", resume,
                 "go on from the newest checkpoint in OUT (the default), or begin anew");
    app.add_flag("--profile", profile, "list milliseconds and bytes of each layer, of the fourth to the eighth step");
    for (CLI::Option* option : app.get_options()) option->capture_default_str();
  }
};

/// Run run(options, opt, steps, {{"net", net}, {"opt", opt}, ...});
/// while (run.goes_on()) { ...; run.step(loss); }
/// if (const int status = run.end({{"net", net}})) return status;
class Run {
 public:
  /// Goes on where a run was cut. `samples` are those of a step, for the speed.
  Run(const RunOptions& options, const sluice::nn::Optimizer& opt, long steps, sluice::nn::Saved items,
      double samples = 0)
      : options_(options),
        opt_(opt),
        steps_(steps),
        log_(options.log.empty() ? options.out + "/log.csv" : options.log, {.tensorboard = options.tensorboard}),
        checkpoints_(options.out, with(std::move(items), log_), {.every = options.every}),
        file_(first_file()),
        profile_(std::in_place, options.profile),
        progress_(options.name, steps, {.samples = samples}, opt.steps()) {}

  bool resumed() const { return !file_.empty(); }
  /// Before each step.
  bool goes_on() {
    profile_->step();
    return opt_.steps() < steps_ && !*interrupt_;
  }

  /// After each step of the optimiser: its loss, and other numbers for the log.
  void step(const sluice::NDArray& loss, sluice::nn::Log::Values more = {}) {
    const long step = static_cast<long>(opt_.steps());
    more.insert(more.begin(), {"loss", loss});
    log_.add(step, more);
    losses_.add(step, loss);
    checkpoints_.step(step);
    const double recent = losses_.recent();  // 0 before the first losses are there
    progress_.show(step, recent != 0 ? "loss " + std::to_string(recent).substr(0, 5) : "");
  }

  /// Writes the last checkpoint, OUT/model.safetensors and the picture. The status to end with, where a signal came.
  int end(const sluice::nn::Saved& model) {
    progress_.leave();
    checkpoints_.save(opt_.steps());
    log_.flush();
    sluice::nn::save(options_.out + "/model.safetensors", model);
    losses_.write(options_.out + "/loss", options_.name + ": loss of each step");
    std::printf("%s%s: model.safetensors, loss.svg\n", profile_->table().c_str(), options_.out.c_str());
    const int status = interrupt_->status();
    if (status) {
      std::printf("interrupted: step %ld is saved; the same command%s goes on from there\n", steps(),
                  options_.resume ? "" : ", but for --no-resume,");
    }
    interrupt_.reset();  // what follows is ended by a signal as usual
    profile_.reset();
    return status;
  }

 private:
  static sluice::nn::Saved with(sluice::nn::Saved items, sluice::nn::Log& log) {
    items.emplace_back("log", log);
    return items;
  }
  long steps() const { return static_cast<long>(opt_.steps()); }
  std::string first_file() {
    std::filesystem::create_directories(options_.out);
    if (!options_.resume) {
      for (const auto& file : std::filesystem::directory_iterator(options_.out)) {
        const std::string name = file.path().filename();
        if (file.is_regular_file() && name.starts_with("step-") && name.ends_with(".safetensors")) {
          std::filesystem::remove(file);
        }
      }
      return {};
    }
    const std::string file = checkpoints_.resume();
    if (!file.empty()) std::printf("goes on from step %ld of %s\n", steps(), file.c_str());
    return file;
  }

  const RunOptions options_;
  const sluice::nn::Optimizer& opt_;
  const long steps_;
  std::optional<sluice::nn::Interrupt> interrupt_{std::in_place};
  sluice::nn::Log log_;
  sluice::nn::Checkpoints checkpoints_;
  const std::string file_;
  std::optional<sluice::nn::Profile> profile_;
  LossPicture losses_;
  sluice::nn::Progress progress_;
};
