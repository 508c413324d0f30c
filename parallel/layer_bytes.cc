#include "sluice/parallel/layer_bytes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/halves.h"
#include "sluice/operators/operators.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/memory_pool.h"

namespace sluice::parallel {
namespace {

using Pieces = std::set<std::pair<const void*, std::size_t>>;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

double bytes_in(const Pieces& pieces) {
  double bytes = 0;
  for (const auto& [id, size] : pieces) bytes += static_cast<double>(size);
  return bytes;
}

void add(Pieces& to, const KeptMemory& piece) { to.insert({piece.id, piece.bytes}); }
Pieces pieces_of(const std::vector<KeptMemory>& list) {
  Pieces pieces;
  for (const KeptMemory& piece : list) add(pieces, piece);
  return pieces;
}
Pieces without(const Pieces& these, const Pieces& those) {
  Pieces left;
  std::ranges::set_difference(these, those, std::inserter(left, left.end()));
  return left;
}

/// What is in use of a device's memory.
class Pool {
 public:
  Pool(Engine& engine, Device device) : engine_(engine), device_(device) {}
  /// What an action takes at most beside what it found: `action` pushes and waits.
  template <class F>
  double peak_of(F&& action) const {
    const auto before = stats().in_use;
    device_.kind == DeviceKind::cpu ? memory_pool(device_).reset_peak() : device_pool(engine_, device_).reset_peak();
    action();
    return static_cast<double>(stats().peak) - static_cast<double>(before);
  }

 private:
  PoolStats stats() const {
    return device_.kind == DeviceKind::cpu ? memory_pool(device_).stats() : device_pool(engine_, device_).stats();
  }
  Engine& engine_;
  Device device_;
};

double gradient_bytes(Module& layer) {
  double bytes = 0;
  for (const NamedParameter& p : layer.parameters()) {
    if (p.value->requires_grad()) bytes += static_cast<double>(p.value->bytes());
  }
  return bytes;
}

}  // namespace

std::vector<LayerSample> layer_bytes(const WatchedLayers& layers, const Batch& batch, std::int64_t rows, Device device,
                                     const LossFunction& loss) {
  const int n = layers.size();
  const DeviceScope scope(device);
  const auto part = [&](const NDArray& whole) {
    const NoGrad no_grad;
    return whole.narrow(0, 0, rows).detach().copy().to(device);
  };
  const NDArray target = part(batch.target);
  std::vector<NDArray> in, out;
  std::vector<Pieces> saved;
  const Pool pool(batch.x.engine(), device);
  std::vector<double> beside(at(n));  // what is in use at most in each forward pass beside what was there
  for (int l = 0; l < n; ++l) {
    layers[l]->to(device);
    in.push_back(l == 0 ? part(batch.x) : out.back().detach().with_grad());
    in.back().wait();
    beside[at(l)] = pool.peak_of([&] {
      out.push_back((*layers[l])(in.back()));
      if (l == n - 1) out.back() = loss(out.back(), target, static_cast<double>(rows));
      out.back().wait();
    });
    saved.push_back(pieces_of(kept_memory({out.back()}, {in.back()})));
  }
  std::vector<LayerSample> samples(at(n));
  // An input that nobody's backward pass reads is gone after the forward pass, but for that of a stage.
  std::vector<Pieces> held = saved;
  Pieces needed;
  for (int l = n - 1; l >= 0; --l) {
    needed.insert(saved[at(l)].begin(), saved[at(l)].end());
    const KeptMemory input = memory_of(in[at(l)]);
    if (needed.count({input.id, input.bytes}) != 0) add(held[at(l)], input);
  }
  std::vector<Pieces> all = saved;
  for (int l = 0; l < n; ++l) {
    add(all[at(l)], memory_of(in[at(l)]));
    LayerSample& sample = samples[at(l)];
    sample.rows = static_cast<double>(rows);
    sample.saved = bytes_in(all[at(l)]);
    if (l > 0) sample.shared = sample.saved - bytes_in(without(held[at(l)], held[at(l) - 1]));
    const KeptMemory output = memory_of(out[at(l)]);
    if (all[at(l)].count({output.id, output.bytes}) == 0) sample.output = static_cast<double>(output.bytes);
    sample.input = static_cast<double>(in[at(l)].bytes());
    Pieces made = saved[at(l)];
    add(made, output);
    for (const KeptMemory& there : {memory_of(in[at(l)]), memory_of(target)}) made.erase({there.id, there.bytes});
    sample.work = std::max(0.0, beside[at(l)] - bytes_in(made));
  }
  NDArray gradient;
  Pieces kept_behind;
  for (int l = n - 1; l >= 0; --l) {
    const std::size_t i = at(l);
    // The first layer may be one without weights, and then nothing wants a gradient.
    if (!out[i].requires_grad()) break;
    WeightGradients later;
    const double half = pool.peak_of([&] {
      later = backward_inputs({out[i]}, {gradient}, {in[i]});
      gradient = l > 0 ? in[i].grad() : NDArray();
      if (gradient.defined()) gradient.wait();
    });
    const Pieces kept = pieces_of(later.memory({in[i]}));
    samples[i].kept = bytes_in(kept);
    if (l < n - 1) samples[i + 1].kept_shared = bytes_in(kept_behind) - bytes_in(without(kept_behind, kept));
    kept_behind = kept;
    samples[i].both = bytes_in(kept) - bytes_in(without(kept, all[i]));
    samples[i].work = std::max(samples[i].work, half - (samples[i].kept - samples[i].both));
    out[i] = {};
    const double rest = pool.peak_of([&] {
      later.run();
      layers.wait_for_gradients(l);
    });
    // The gradients themselves count as weights.
    samples[i].work = std::max(samples[i].work, rest - gradient_bytes(*layers[l]));
  }
  layers.drop_gradients();
  return samples;
}

}  // namespace sluice::parallel
