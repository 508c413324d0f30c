// The arguments of examples/fashion_mnist.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "sluice/sluice.h"

struct Arguments {
  int stages = 2, microbatches = 8, epochs = 5, batch = 128, train_limit = 0, every = 0;
  double lr = 0.05, memory = 0;
  std::uint64_t seed = 1;
  bool microbatches_given = false, schedule_given = false, plan = false, compare = false, profile = false;
  std::string schedule = "1f1b", data = sluice::nn::kFashionMnistDirectory, save, resume, log, tensorboard,
              device = "cpu", out = "build/quickstart";
};

/// A line about something that the user gave us: exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// 2 for what the user can mend in the arguments or files, 1 for what failed while it ran.
inline int exit_status(const std::exception& e) {
  return dynamic_cast<const BadInput*>(&e) || dynamic_cast<const sluice::FormatError*>(&e) ||
                 dynamic_cast<const sluice::UsageError*>(&e)
             ? 2
             : 1;
}

/// What is wrong with arguments that are fine one by one.
inline void check_together(const Arguments& a) {
  using sluice::parallel::make_schedule, sluice::parallel::stages_of_a_device;
  if (a.microbatches > a.batch) {
    throw BadInput("--microbatches " + std::to_string(a.microbatches) + ": more than --batch " +
                   std::to_string(a.batch));
  }
  if (a.schedule == "auto") return;
  try {
    (void)make_schedule(a.schedule, stages_of_a_device(a.schedule) * a.stages, a.microbatches);
  } catch (const std::invalid_argument& e) {
    throw BadInput("--schedule " + a.schedule + ": " + e.what());
  }
}

inline Arguments parse(int argc, char** argv) {
  Arguments a;
  CLI::App app("Trains a small convolutional network on Fashion-MNIST as a pipeline over logical devices.");
  app.add_option("--stages", a.stages,
                 "devices of the pipeline, with a stage on each; zbv and interleaved have several")
      ->check(CLI::Range(1, 4));
  app.add_option(
      "--schedule", a.schedule,
      "order of the microbatches: " + sluice::parallel::known_schedules() + "; or auto: the plan that --plan shows");
  app.add_option("--microbatches", a.microbatches, "parts that a batch is split into (auto: chosen if not given)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--plan", a.plan,
               "measure the layers, print what each schedule would take and why the others are refused, and end");
  app.add_flag("--compare", a.compare,
               "run a few steps by each schedule in turns, print speed, bubble and memory beside the plan's, and end");
  app.add_option("--memory", a.memory, "MiB that each device may hold, for the plan (0: without bound)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--epochs", a.epochs, "passes over the training images")->check(CLI::Range(1, 1000));
  app.add_option("--batch", a.batch, "images in a step")->check(CLI::Range(1, 60000));
  app.add_option("--lr", a.lr, "learning rate of SGD (momentum 0.9), falling linearly to a tenth")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", a.seed, "seed of the weights and of the order of the images");
  app.add_option("--data", a.data, "folder with the four IDX files (Debian: dataset-fashion-mnist)");
  app.add_option("--save", a.save, "file for the model and all that --resume needs (default: OUT/model.safetensors)");
  app.add_option("--every", a.every, "steps from one checkpoint OUT/step-... to the next, for --resume too (0: none)")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--resume", a.resume, "go on from such a file");
  app.add_option("--log", a.log, "a CSV file with the loss of each step (default: OUT/log.csv)");
  app.add_option("--tensorboard", a.tensorboard, "a folder for TensorBoard, with the same numbers");
  app.add_flag("--profile", a.profile, "list milliseconds and bytes of each layer, of the fourth to the eighth step");
  app.add_option("--device", a.device, "kind of device: cpu or cuda; stages share a GPU where there are too few")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--train-limit", a.train_limit, "use only the first N training images (0: all)")
      ->check(CLI::Range(0, 60000));
  app.add_option("--out", a.out, "folder for timeline, picture and model");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& e) {
    throw BadInput(e.what());
  }
  a.microbatches_given = app.count("--microbatches") > 0;
  a.schedule_given = app.count("--schedule") > 0;
  check_together(a);
  if (a.save.empty()) a.save = a.out + "/model.safetensors";
  if (a.log.empty()) a.log = a.out + "/log.csv";
  return a;
}

inline void make_folder(const std::string& out) {
  std::error_code ignored;
  std::filesystem::create_directories(out, ignored);
  if (!std::filesystem::is_directory(out, ignored)) throw BadInput("--out " + out + ": not a folder that can be made");
}

/// The i-th device of a run.
inline sluice::Device device(const Arguments& a, int i) { return a.device == "cuda" ? sluice::gpu(i) : sluice::cpu(i); }

/// Those of the stages.
inline std::vector<sluice::Device> stage_devices(const Arguments& a) {
  std::vector<sluice::Device> devices;
  for (int i = 0; i < a.stages; ++i) devices.push_back(device(a, i));
  return devices;
}
