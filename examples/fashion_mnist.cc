// Trains a convolutional network on Fashion-MNIST as a pipeline over logical devices of the CPU or over GPUs, and draws
// what happened.
// ./quickstart.sh builds and runs it; --help says all of its arguments.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "progress.h"
#include "sluice/sluice.h"

using namespace sluice;

namespace {

struct Arguments {
  int stages = 2, microbatches = 8, tensor_parallel = 1, epochs = 5, batch = 128, train_limit = 0;
  double lr = 0.05;
  std::uint64_t seed = 1;
  std::string schedule = "1f1b", data = kFashionMnistDirectory, save, resume, device = "cpu", out = "build/quickstart";
};

constexpr double kMean = 0.286, kDeviation = 0.353;  ///< of the training pixels, where white is 1

volatile std::sig_atomic_t interrupted = 0;

/// A line about something that the user gave us: exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  CLI::App app("Trains a small convolutional network on Fashion-MNIST as a pipeline over logical devices.");
  app.add_option("--stages", a.stages, "pipeline stages, each on a device of its own")->check(CLI::Range(1, 4));
  app.add_option("--schedule", a.schedule, "order of the microbatches: gpipe, 1f1b, zb-h1 or zb-h2")
      ->check(CLI::IsMember({"gpipe", "1f1b", "zb-h1", "zb-h2"}));
  app.add_option("--microbatches", a.microbatches, "parts that a batch is split into")->check(CLI::Range(1, 1024));
  app.add_option("--tensor-parallel", a.tensor_parallel, "devices that share the dense layers' weights")
      ->check(CLI::Range(1, 2));
  app.add_option("--epochs", a.epochs, "passes over the training images")->check(CLI::Range(1, 1000));
  app.add_option("--batch", a.batch, "images in a step")->check(CLI::Range(1, 60000));
  app.add_option("--lr", a.lr, "learning rate of SGD (momentum 0.9), falling linearly to a tenth")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", a.seed, "seed of the weights and of the order of the images");
  app.add_option("--data", a.data, "folder with the four IDX files (Debian: dataset-fashion-mnist)");
  app.add_option("--save", a.save, "file for the model and all that --resume needs (default: OUT/model.safetensors)");
  app.add_option("--resume", a.resume, "go on from such a file");
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
  if (a.microbatches > a.batch)
    throw BadInput("--microbatches " + std::to_string(a.microbatches) + ": more than --batch " +
                   std::to_string(a.batch));
  if (a.save.empty()) a.save = a.out + "/model.safetensors";
  return a;
}

/// The i-th device of a run.
Device device(const Arguments& a, int i) { return a.device == "cuda" ? gpu(i) : cpu(i); }

/// Devices for the stages, and for the second half of the dense layers.
int devices_wanted(const Arguments& a) { return a.stages + a.tensor_parallel - 1; }

struct Cards {
  int count = 0;
  int logical = 0;  ///< the devices that each is, as CudaOptions::logical; 0: as SLUICE_LOGICAL_GPUS says
};

/// The machine's cards. Where they are fewer than the devices wanted each is several, unless SLUICE_LOGICAL_GPUS says
/// how many.
Cards find_cards(const Arguments& a) {
  if (!cuda_unavailable().empty()) throw std::runtime_error("no CUDA device: " + cuda_unavailable());
  Cards cards{.count = cuda_devices({.logical = 1})()->devices()};
  const char* const asked = std::getenv("SLUICE_LOGICAL_GPUS");
  if (!asked || !*asked) cards.logical = (devices_wanted(a) + cards.count - 1) / cards.count;
  return cards;
}

/// The layers, and where stages begin, chosen so that stages take about the same time.
struct Model {
  std::vector<ModulePtr> layers;
  std::vector<int> first_layer;  ///< of each stage
};

Model make_model(const Arguments& a) {
  RandomStream random(a.seed, 1);
  Model m;
  m.layers = {std::make_shared<Conv2d>(1, 32, 3, random, ConvOptions{.relu = true}),
              std::make_shared<MaxPool2d>(2),
              std::make_shared<Conv2d>(32, 32, 3, random, ConvOptions{.padding = 1, .relu = true}),
              std::make_shared<Conv2d>(32, 64, 3, random, ConvOptions{.relu = true}),
              std::make_shared<MaxPool2d>(2),
              std::make_shared<Flatten>()};
  if (a.tensor_parallel == 1) {
    m.layers.push_back(std::make_shared<Linear>(1600, 128, random, LinearLayerOptions{.relu = true}));
    m.layers.push_back(std::make_shared<Linear>(128, 10, random));
  } else {
    const parallel::Communicator group({device(a, a.stages - 1), device(a, a.stages)});
    m.layers.push_back(std::make_shared<parallel::ShardedMlp>(1600, 128, 10, group, random));
  }
  static const std::vector<int> cuts[] = {{0}, {0, 3}, {0, 2, 3}, {0, 2, 3, 4}};
  m.first_layer = cuts[a.stages - 1];
  return m;
}

std::vector<parallel::Stage> make_stages(const Arguments& a, const Model& model) {
  Sequential whole;
  for (const ModulePtr& layer : model.layers) whole.push_back(layer);
  std::vector<parallel::Stage> stages;
  for (std::size_t i = 0; i < model.first_layer.size(); ++i) {
    const std::size_t end = i + 1 < model.first_layer.size() ? model.first_layer[i + 1] : model.layers.size();
    stages.push_back(
        {std::make_shared<Sequential>(whole.slice(model.first_layer[i], end)), device(a, static_cast<int>(i))});
  }
  return stages;
}

/// The first n samples of a tensor.
HostTensor first_samples(const HostTensor& all, std::int64_t n) {
  HostTensor part = all;
  part.shape[0] = std::min(n, all.shape[0]);
  part.bytes.resize(all.bytes.size() / static_cast<std::size_t>(all.shape[0]) *
                    static_cast<std::size_t>(part.shape[0]));
  return part;
}

double test_accuracy(const parallel::Pipeline& net, const FashionMnist& data, Device first, Device last) {
  DataLoader loader(data.test_images, data.test_labels,
                    {.batch = 500,
                     .sample_shape = {1, 28, 28},
                     .mean = kMean,
                     .deviation = kDeviation,
                     .device = first,
                     .label_device = last});
  std::deque<NDArray> counts;
  for (auto [x, y] : loader) counts.push_back(accuracy(net.forward(x), y));
  std::int64_t right = 0;
  for (const NDArray& count : counts) right += count.item<std::int64_t>();
  return static_cast<double>(right) / static_cast<double>(data.test_images.shape[0]);
}

/// What the traced steps say, and the files that show one of them.
void report_timeline(const Arguments& a, const parallel::Pipeline& net, const std::vector<TraceEvent>& events,
                     std::uint64_t first_step, const Engine& engine, const Cards& cards) {
  struct Measured {
    double bubble;
    std::vector<parallel::TimelineBox> boxes;
  };
  std::vector<Measured> steps;
  double span = 0, busy = 0;
  std::vector<parallel::StageCost> cost(static_cast<std::size_t>(a.stages));
  const parallel::Schedule schedule = parallel::make_schedule(a.schedule, a.stages, a.microbatches);
  std::size_t actions = 0;
  for (const auto& list : schedule.per_device) actions += list.size();
  const bool halves = parallel::Order(schedule).has({parallel::ActionKind::input_gradient, 0, 0});
  for (std::uint64_t s = first_step; s <= net.step_number(); ++s) {
    std::vector<parallel::TimelineBox> boxes = net.boxes(events, s);
    // The first stage's input wants no gradient: its I does nothing and has no box.
    if (boxes.size() != actions - (halves ? static_cast<std::size_t>(a.microbatches) : 0)) continue;
    const parallel::TimelineFigures figures = parallel::measure(boxes, a.stages);
    span += figures.span;
    busy += figures.busy;
    for (std::size_t i = 0; i < cost.size(); ++i) {
      for (int kind = 0; kind < parallel::kActionKinds; ++kind) {
        const auto k = static_cast<parallel::ActionKind>(kind);
        cost[i].of(k) += figures.mean[i].of(k);
      }
    }
    steps.push_back({figures.bubble, std::move(boxes)});
  }
  if (steps.empty()) return;
  for (parallel::StageCost& c : cost) {
    for (int kind = 0; kind < parallel::kActionKinds; ++kind) {
      c.of(static_cast<parallel::ActionKind>(kind)) /= static_cast<double>(steps.size());
    }
  }
  // What works at once: cores, or cards.
  const std::string word = a.device == "cuda" ? "card" : "core";
  int workers = cards.count;
  if (a.device == "cpu") {
    for (int i = 0; i < a.stages; ++i) workers += engine.threads(cpu(i));
    workers = std::min(workers, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  }
  const double bubble = 1 - busy / (a.stages * span);
  // Boxes of stages that share cores or cards already hold the time spent waiting for one: simulate them as they are.
  const double simulated = parallel::simulate(schedule, cost, {.cores = a.stages <= workers ? workers : 0}).bubble;
  std::printf(
      "bubble          %.1f %%     (simulated with the measured %s times and %d %s%s: %.1f %%; 1F1B formula "
      "%.1f %%)\n",
      100 * bubble, halves ? "F, I and W" : "F and B", workers, word.c_str(), workers == 1 ? "" : "s", 100 * simulated,
      100 * parallel::bubble_formula(a.stages, a.microbatches));

  // The step whose bubble is the median stands for all.
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end(),
                   [](const Measured& x, const Measured& y) { return x.bubble < y.bubble; });
  const Measured& median = steps[steps.size() / 2];
  parallel::RenderOptions look;
  look.title = "Fashion-MNIST, " + std::to_string(a.stages) + " stages, " + std::to_string(a.microbatches) +
               " microbatches, " + a.schedule + ": one training step as measured";
  char text[160];
  const bool timed = std::any_of(events.begin(), events.end(), [](const TraceEvent& e) { return e.device_end != 0; });
  std::snprintf(text, sizeof text, "batch %d, %d %s%s, bubble of this step %.1f %%%s", a.batch, workers, word.c_str(),
                workers == 1 ? "" : "s", 100 * median.bubble, timed ? ", by the devices' clocks" : "");
  look.subtitle = text;
  for (int i = 0; i < a.stages; ++i)
    look.labels.push_back("stage " + std::to_string(i) + " · " + to_string(device(a, i)));
  parallel::write_file(a.out + "/timeline.json", to_perfetto(events));
  parallel::write_file(a.out + "/timeline.svg", parallel::render_svg(median.boxes, look));
  std::printf("timeline        %s/timeline.json   (open in ui.perfetto.dev)\n", a.out.c_str());
  std::printf("picture         %s/timeline.svg\n", a.out.c_str());
}

std::int64_t number(const std::map<std::string, std::string>& metadata, const char* key, const std::string& file) {
  const auto it = metadata.find(key);
  if (it == metadata.end() || it->second.empty() || it->second.find_first_not_of("0123456789") != std::string::npos ||
      it->second.size() > 15)
    throw BadInput(file + ": no checkpoint of this program (its metadata has no number '" + key + "')");
  return std::stoll(it->second);
}

int train(const Arguments& a) {
  Cards cards;
  EngineOptions options;
  if (a.device == "cuda") {
    cards = find_cards(a);
    options.providers = {cuda_devices({.logical = cards.logical})};
  } else {
    options.logical_cpus = devices_wanted(a);
  }
  Engine engine(options);
  set_default_engine(&engine);
  if (const int there = engine.device_count(device(a, 0).kind); there < devices_wanted(a))
    throw BadInput("--stages " + std::to_string(a.stages) + ": " + std::to_string(devices_wanted(a)) +
                   " devices are wanted, and SLUICE_LOGICAL_GPUS makes " + std::to_string(there));

  FashionMnist data = load_fashion_mnist(a.data);
  if (a.train_limit > 0) {
    data.train_images = first_samples(data.train_images, a.train_limit);
    data.train_labels = first_samples(data.train_labels, a.train_limit);
  }
  std::error_code ignored;
  std::filesystem::create_directories(a.out, ignored);
  if (!std::filesystem::is_directory(a.out)) throw BadInput("--out " + a.out + ": not a folder that can be made");

  const Model model = make_model(a);
  parallel::Pipeline net(make_stages(a, model));
  Sgd optimizer(net.parameters(), {.lr = a.lr, .momentum = 0.9});
  const Device first = device(a, 0), last = device(a, a.stages - 1);
  DataLoader loader(data.train_images, data.train_labels,
                    {.batch = a.batch,
                     .shuffle = true,
                     .seed = a.seed,
                     .prefetch = 4,
                     .drop_last = true,
                     .sample_shape = {1, 28, 28},
                     .mean = kMean,
                     .deviation = kDeviation,
                     .device = first,
                     .label_device = last});
  const std::int64_t per_epoch = loader.size(), total = per_epoch * a.epochs;
  if (per_epoch == 0)
    throw BadInput("--batch " + std::to_string(a.batch) + ": more than the " + std::to_string(loader.samples()) +
                   " training images");

  std::int64_t done = 0;
  if (!a.resume.empty()) {
    const auto metadata = load_checkpoint(a.resume, net.parameters(), optimizer.state());
    if (number(metadata, "batch", a.resume) != a.batch ||
        number(metadata, "seed", a.resume) != static_cast<std::int64_t>(a.seed))
      throw BadInput(a.resume + ": made with --batch " + metadata.at("batch") + " --seed " + metadata.at("seed"));
    done = number(metadata, "step", a.resume);
    if (done > total)
      throw BadInput(a.resume + ": is at step " + std::to_string(done) + ", past the " + std::to_string(total) +
                     " wanted");
    loader.set_epoch(static_cast<std::uint64_t>(done / per_epoch), done % per_epoch);
  }
  const auto save = [&] {
    save_checkpoint(
        a.save, net.parameters(), optimizer.state(),
        {{"step", std::to_string(done)}, {"batch", std::to_string(a.batch)}, {"seed", std::to_string(a.seed)}});
  };

  std::int64_t weights = 0;
  for (const NamedParameter& p : net.parameters()) weights += p.value->count();
  std::printf(
      "Fashion-MNIST   %lld training images; network with %lld weights; %d stage%s, %d microbatches of %d, %s\n",
      static_cast<long long>(loader.samples()), static_cast<long long>(weights), a.stages, a.stages == 1 ? "" : "s",
      a.microbatches, a.batch / a.microbatches, a.schedule.c_str());

  // The last steps are traced; the loss is read a few steps late, so that pushing runs ahead of the devices.
  constexpr std::int64_t traced = 16;
  std::uint64_t first_traced = 0;
  std::deque<NDArray> losses;
  double shown_loss = 0;
  const std::int64_t begun_at = done;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const auto read_loss = [&] {
    const double loss = losses.front().item<double>();
    losses.pop_front();
    if (!std::isfinite(loss))
      throw std::runtime_error("training failed: the loss is " + std::to_string(loss) + "; try a smaller --lr");
    shown_loss = shown_loss == 0 ? loss : 0.98 * shown_loss + 0.02 * loss;
  };
  Progress progress("training", static_cast<long>(total));
  while (done < total && !interrupted) {
    for (auto [x, y] : loader) {
      if (interrupted) break;
      if (first_traced == 0 && total - done <= traced) {
        net.forward(x).wait();  // what was pushed before is no part of the traced steps
        engine.start_trace();
        first_traced = net.step_number() + 1;
      }
      optimizer.set_lr(a.lr * (1 - 0.9 * static_cast<double>(done) / static_cast<double>(total)));
      losses.push_back(net.step(x, y, {.microbatches = a.microbatches, .schedule = a.schedule}));
      optimizer.step();
      ++done;
      if (losses.size() > 3) read_loss();
      char text[96];
      std::snprintf(text, sizeof text, "epoch %lld/%d  loss %.3f  %.0f images/s",
                    static_cast<long long>((done - 1) / per_epoch + 1), a.epochs, shown_loss,
                    static_cast<double>((done - begun_at) * a.batch) / seconds());
      progress.show(static_cast<long>(done), text);
    }
  }
  while (!losses.empty()) read_loss();
  engine.wait_all();
  const double elapsed = seconds();
  const std::vector<TraceEvent> events = first_traced ? engine.stop_trace() : std::vector<TraceEvent>{};
  save();
  if (interrupted) {
    progress.leave();
    std::printf("interrupted after step %lld of %lld\n", static_cast<long long>(done), static_cast<long long>(total));
    std::printf("checkpoint      %s   (go on with --resume %s)\n", a.save.c_str(), a.save.c_str());
    return 130;
  }
  std::printf("test accuracy   %.4f      (%lld images)\n", test_accuracy(net, data, first, last),
              static_cast<long long>(data.test_images.shape[0]));
  if (done > begun_at) {
    std::printf("throughput      %.0f images/s\n", static_cast<double>((done - begun_at) * a.batch) / elapsed);
    report_timeline(a, net, events, first_traced, engine, cards);
  }
  std::printf("model           %s\n", a.save.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Ctrl-C ends the loop after the step that is being pushed; a second one ends the program at once.
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
  int status = 1;
  try {
    status = train(parse(argc, argv));
  } catch (const BadInput& e) {
    std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
    status = 2;
  } catch (const FormatError& e) {
    std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
    status = 2;
  } catch (const UsageError& e) {
    std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
    status = 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fashion_mnist: %s\n", e.what());
  }
  set_default_engine(nullptr);
  return status;
}
