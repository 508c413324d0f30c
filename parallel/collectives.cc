// The all-reduce inside one process: each rank's result is one op that reads all shards and adds them in rank order.
// Shards in memory that the rank's device cannot reach are transferred to it first.
#include "sluice/parallel/collectives.h"

#include <string>
#include <utility>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/loops.h"
#include "sluice/operators/add_n.h"
#include "sluice/operators/costs.h"
#include "sluice/operators/register.h"
#include "sluice/operators/registry.h"

namespace sluice::parallel {
namespace {

struct Ranks {
  std::vector<Device> devices;  ///< of the inputs
  friend bool operator==(const Ranks&, const Ranks&) = default;
};

constexpr std::int64_t kGrain = 1 << 15;

template <class T>
void add_in_order(ArrayContext& context, std::int64_t begin, std::int64_t end) {
  T* const out = context.output().as<T>();
  const T* const first = context.input(0).as<T>();
  for (std::int64_t i = begin; i < end; ++i) out[i] = first[i];
  for (int r = 1; r < context.inputs(); ++r) {
    const T* const part = context.input(r).as<T>();
    for (std::int64_t i = begin; i < end; ++i) out[i] += part[i];
  }
}

template <class T>
struct Reference {
  static void run(ArrayContext& context) {
    using C = compute_of<T>;
    for (std::int64_t i = 0; i < context.output().count(); ++i) {
      C total = static_cast<C>(context.input(0).as<T>()[i]);
      for (int r = 1; r < context.inputs(); ++r) total += static_cast<C>(context.input(r).as<T>()[i]);
      context.output().as<T>()[i] = static_cast<T>(total);
    }
  }
};

template <class T>
struct Cpu {
  static void run(ArrayContext& context) {
    parallel_for(context.output().count(), kGrain,
                 [&](std::int64_t begin, std::int64_t end) { add_in_order<T>(context, begin, end); });
  }
};

const Operator& all_reduce_row() {
  return detail::first_use([] {
    return &add_operator("all_reduce", [](Operator& op) {
      op.cost = costs::each_of_all;
      op.max_inputs = Operator::kAnyNumber;
      op.infer = [](Signature& s) {
        s.same_dtypes();
        s.sums();
        for (int i = 1; i < s.inputs(); ++i)
          if (!(s.shape(i) == s.shape(0))) s.fail("the ranks' shapes differ");
        s.output(s.shape(0), s.dtype());
      };
      op.gradient = [](GradientContext& c) {
        const std::vector<Device>& devices = c.attributes().get<Ranks>().devices;
        for (int i = 0; i < c.inputs(); ++i)
          if (c.wanted(i)) c.set(i, c.gradient().to(devices[static_cast<std::size_t>(i)], c.where()));
      };
      using backends::Sums;
      backends::add<Reference>(op, backends::kReference, Sums{}, backends::kDense);
      backends::add<Cpu>(op, backends::kCpu, backends::Direct<Sums>{}, backends::kDense);
    });
  });
}

}  // namespace

Communicator::Communicator(std::vector<Device> devices, Engine& engine)
    : devices_(std::move(devices)), order_(engine.variable("communicator")) {
  if (devices_.empty()) throw UsageError("[Communicator] no devices");
}

std::vector<NDArray> all_reduce(const Communicator& group, std::span<const NDArray> parts, std::source_location where) {
  if (static_cast<int>(parts.size()) != group.size())
    throw ArrayError("all_reduce", where,
                     std::to_string(parts.size()) + " parts for " + std::to_string(group.size()) + " ranks");
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const Device device = parts[r].checked("all_reduce", where).device();
    if (!(device == group.devices()[r]))
      throw ArrayError("all_reduce", where,
                       "the part of rank " + std::to_string(r) + " is on " + to_string(device) + ", not on " +
                           to_string(group.devices()[r]));
  }
  SequenceScope in_order(group.order_variable());
  std::vector<NDArray> sums;
  for (const Device& device : group.devices()) {
    DeviceScope scope(device);
    std::vector<NDArray> shards;
    std::vector<const NDArray*> inputs;
    Ranks ranks;
    shards.reserve(parts.size());
    for (const NDArray& part : parts) {
      const bool in_reach = device.kind == DeviceKind::cpu && part.device().kind == DeviceKind::cpu;
      inputs.push_back(&shards.emplace_back(in_reach ? part : part.to(device, where)));
      ranks.devices.push_back(shards.back().device());
    }
    // A device with kernels of its own adds them as any other arrays, in the same order.
    const bool has_kernel = all_reduce_row().kernel(device.kind, shards[0].dtype()) != nullptr;
    sums.push_back(has_kernel
                       ? apply_all(all_reduce_row(), inputs, std::move(ranks), {.where = where, .on = device}).front()
                       : add_n(shards, where));
  }
  return sums;
}

}  // namespace sluice::parallel
