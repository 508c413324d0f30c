#include "sluice/parallel/layer_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/halves.h"
#include "sluice/operators/operators.h"
#include "sluice/resources/device_pool.h"
#include "sluice/resources/memory_pool.h"

namespace sluice::parallel::detail {
namespace {

using Pieces = std::set<std::pair<std::uint32_t, std::size_t>>;

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
    const auto before = stats().asked;
    device_.kind == DeviceKind::cpu ? memory_pool(device_).reset_peak() : device_pool(engine_, device_).reset_peak();
    action();
    return static_cast<double>(stats().peak_asked) - static_cast<double>(before);
  }

 private:
  PoolStats stats() const {
    return device_.kind == DeviceKind::cpu ? memory_pool(device_).stats() : device_pool(engine_, device_).stats();
  }
  Engine& engine_;
  Device device_;
};

double gradient_bytes(const TrialNet& net, int layer) {
  double bytes = 0;
  for (const NDArray& leaf : net.leaves(layer)) bytes += static_cast<double>(leaf.bytes());
  return bytes;
}

void add(Pieces& to, const nn::Arrays& arrays) {
  for (const NDArray& x : arrays) add(to, memory_of(x));
}

nn::Arrays wanting_gradients(const nn::Arrays& arrays) {
  nn::Arrays list;
  for (const NDArray& x : arrays) {
    if (x.requires_grad()) list.push_back(x);
  }
  return list;
}

void wait(const nn::Arrays& arrays) {
  for (const NDArray& x : arrays) x.wait();
}

}  // namespace

nn::Arrays TrialNet::call(int layer, const nn::Arrays& x) const {
  const std::vector<std::size_t> slots = net_.reads(layer, layer + 1);
  std::vector<NDArray> values;
  for (const std::size_t slot : slots) values.push_back(net_.state(slot).value);
  const ReadsOf reads(net_, slots, values, "'" + net_.name(layer) + "'");
  return net_.call(layer, x);
}

void TrialNet::to(Device device) const {
  nn::Contents all;
  all.slots = net_.slots();
  std::erase_if(all.slots, [](const nn::Named& slot) { return !slot.state->value.defined(); });
  nn::detail::move(all, device, std::source_location::current());
}

std::vector<NDArray> TrialNet::leaves(int layer) const {
  std::vector<NDArray> list;
  for (const std::size_t slot : net_.reads(layer, layer + 1)) list.push_back(net_.state(slot).value);
  return wanting_gradients(list);
}

void TrialNet::wait_for_gradients(int layer) const {
  for (const NDArray& leaf : leaves(layer)) {
    if (leaf.grad().defined()) leaf.grad().wait();
  }
}

void TrialNet::drop_gradients() const {
  for (int l = 0; l < size(); ++l) {
    for (const NDArray& leaf : leaves(l)) leaf.zero_grad();
  }
}

std::vector<LayerSample> layer_bytes(const TrialNet& net, const Batch& batch, std::int64_t rows, Device device,
                                     const Loss& loss) {
  const int n = net.size();
  const DeviceScope scope(device);
  const auto part = [&](const NDArray& whole) {
    const NoGrad no_grad;
    return whole.narrow(0, 0, rows).detach().copy().to(device);
  };
  const NDArray target = part(batch.target);
  std::vector<nn::Arrays> in(at(n)), out(at(n));
  std::vector<Pieces> saved;
  const Pool pool(batch.target.engine(), device);
  std::vector<double> beside(at(n));  // what is in use at most in each forward pass beside what was there
  net.to(device);
  for (int l = 0; l < n; ++l) {
    nn::Arrays& x = in[at(l)];
    nn::Arrays& y = out[at(l)];
    if (l == 0) {
      for (const NDArray& one : batch.x) x.push_back(part(one));
    } else {
      for (const NDArray& one : out[at(l - 1)]) {
        x.push_back(one.requires_grad() ? one.detach().with_grad() : one.detach());
      }
    }
    wait(x);
    beside[at(l)] = pool.peak_of([&] {
      y = net.call(l, x);
      if (l == n - 1) y = {loss.of_batch(target)(y.at(0), target)};
      wait(y);
    });
    saved.push_back(pieces_of(kept_memory(y, x)));
  }
  std::vector<LayerSample> samples(at(n));
  // An input that nobody's backward pass reads is gone after the forward pass, but for that of a stage.
  std::vector<Pieces> held = saved;
  Pieces needed;
  for (int l = n - 1; l >= 0; --l) {
    needed.insert(saved[at(l)].begin(), saved[at(l)].end());
    for (const NDArray& x : in[at(l)]) {
      const KeptMemory input = memory_of(x);
      if (needed.count({input.id, input.bytes}) != 0) add(held[at(l)], input);
    }
  }
  std::vector<Pieces> all = saved;
  for (int l = 0; l < n; ++l) {
    add(all[at(l)], in[at(l)]);
    LayerSample& sample = samples[at(l)];
    sample.rows = static_cast<double>(rows);
    sample.saved = bytes_in(all[at(l)]);
    if (l > 0) sample.shared = sample.saved - bytes_in(without(held[at(l)], held[at(l) - 1]));
    Pieces output, made = saved[at(l)], there;
    add(output, out[at(l)]);
    // What passes through beside something else may be no input of the stage, and nobody may need it.
    sample.output = bytes_in(without(output, out[at(l)].size() > 1 ? held[at(l)] : all[at(l)]));
    for (const NDArray& x : in[at(l)]) sample.input += static_cast<double>(x.bytes());
    made.insert(output.begin(), output.end());
    add(there, in[at(l)]);
    add(there, memory_of(target));
    sample.work = std::max(0.0, beside[at(l)] - bytes_in(without(made, there)));
  }
  nn::Arrays gradients(1);  // of the layer's outputs; those of the loss are ones
  Pieces kept_behind;
  for (int l = n - 1; l >= 0; --l) {
    const std::size_t i = at(l);
    nn::Arrays roots, of_roots;
    for (std::size_t k = 0; k < out[i].size(); ++k) {
      if (!out[i][k].requires_grad() || (l < n - 1 && !gradients[k].defined())) continue;
      roots.push_back(out[i][k]);
      of_roots.push_back(gradients[k]);
    }
    // The first layers may be without weights, and then nothing wants a gradient.
    if (roots.empty()) break;
    const nn::Arrays inputs = wanting_gradients(in[i]);
    WeightGradients later;
    const double half = pool.peak_of([&] {
      later = backward_inputs(roots, of_roots, inputs);
      gradients.clear();
      for (const NDArray& x : in[i]) gradients.push_back(x.requires_grad() ? x.grad() : NDArray());
      of_roots.clear();
      for (const NDArray& gradient : gradients) {
        if (gradient.defined()) gradient.wait();
      }
    });
    const Pieces kept = pieces_of(later.memory(inputs));
    samples[i].kept = bytes_in(kept);
    if (l < n - 1) samples[i + 1].kept_shared = bytes_in(kept_behind) - bytes_in(without(kept_behind, kept));
    kept_behind = kept;
    samples[i].both = bytes_in(kept) - bytes_in(without(kept, all[i]));
    samples[i].work = std::max(samples[i].work, half - (samples[i].kept - samples[i].both));
    out[i].clear();
    roots.clear();
    const double rest = pool.peak_of([&] {
      later.run();
      net.wait_for_gradients(l);
    });
    // The gradients themselves count as weights.
    samples[i].work = std::max(samples[i].work, rest - gradient_bytes(net, l));
  }
  net.drop_gradients();
  return samples;
}

}  // namespace sluice::parallel::detail
