// Trains a convolutional network on Fashion-MNIST as a pipeline over logical devices of the CPU or over GPUs, and draws
// what happened.
// ./quickstart.sh builds and runs it; --help says all of its arguments.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fashion_mnist_arguments.h"
#include "fashion_mnist_compare.h"
#include "fashion_mnist_model.h"
#include "fashion_mnist_report.h"
#include "progress.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/sluice.h"

using namespace sluice;

namespace {

constexpr double kMean = 0.286, kDeviation = 0.353;  ///< of the training pixels, where white is 1

volatile std::sig_atomic_t interrupted = 0;

/// The machine's cards. Where they are fewer than the devices wanted each is several, unless SLUICE_LOGICAL_GPUS says
/// how many.
Cards find_cards(const Arguments& a) {
  if (!cuda_unavailable().empty()) throw std::runtime_error("no CUDA device: " + cuda_unavailable());
  Cards cards{.count = cuda_devices({.logical = 1})()->devices()};
  const char* const asked = std::getenv("SLUICE_LOGICAL_GPUS");
  if (!asked || !*asked) cards.logical = (devices_wanted(a) + cards.count - 1) / cards.count;
  return cards;
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

  const Sequential network = make_network(a);
  if (a.plan) {
    std::fputs(to_text(make_plan(a, network)).c_str(), stdout);
    return 0;
  }
  if (a.compare) {
    compare(a, engine);
    return 0;
  }
  FashionMnist data = load_fashion_mnist(a.data);
  if (a.train_limit > 0) {
    data.train_images = first_samples(data.train_images, a.train_limit);
    data.train_labels = first_samples(data.train_labels, a.train_limit);
  }
  std::error_code ignored;
  std::filesystem::create_directories(a.out, ignored);
  if (!std::filesystem::is_directory(a.out)) throw BadInput("--out " + a.out + ": not a folder that can be made");

  const Choice choice = choose(a, network);
  const parallel::Candidate& chosen = choice.candidate;
  if (!choice.layers.empty()) {
    std::printf("plan            %s, layers %s: %.0f images/s, at most %s on a device\n", chosen.schedule.c_str(),
                cut_to_text(chosen, static_cast<int>(network.size())).c_str(), chosen.throughput,
                bytes_in_words(*std::ranges::max_element(chosen.peak)).c_str());
  }
  const parallel::Schedule schedule = chosen.make();
  parallel::Pipeline net(stages_of(chosen, network, stage_devices(a)));
  Sgd optimizer(net.parameters(), {.lr = a.lr, .momentum = 0.9});
  const Device first = device(a, 0), last = net.stage(net.stages() - 1).device;
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
      static_cast<long long>(loader.samples()), static_cast<long long>(weights), net.stages(),
      net.stages() == 1 ? "" : "s", chosen.microbatches, a.batch / chosen.microbatches, chosen.schedule.c_str());

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
      losses.push_back(net.step(x, y, {.microbatches = chosen.microbatches, .schedule = schedule}));
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
    report_timeline(a, choice, net, events, first_traced, engine, cards);
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
