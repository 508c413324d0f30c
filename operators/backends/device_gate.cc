// The gate of an optimiser's step on devices that find errors late: a kernel that is issued behind all that the step
// builds upon, and looks at what the devices have found by then.
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/operators/attributes.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/register.h"

namespace sluice {
namespace {

/// Opens the gate if, when all that the step builds upon is over, the devices have found no error that the host did not
/// know of as this was issued (what is known has poisoned the gate's inputs). One kernel looks, once, for all devices.
void latch(ArrayContext& context) {
  Provider& provider = context.provider();
  const Device here = context.device();
  std::vector<std::uint64_t> settled;
  for (int i = 0; i < provider.devices(); ++i) {
    const Device device{here.kind, static_cast<std::uint8_t>(i)};
    settled.push_back(context.engine_context().settled_errors(device));
  }
  auto* const gate = context.output().as<std::uint8_t>();
  const MemoryUse use{gate, 1, true};
  context.stream().launch(
      [&provider, gate, known = std::move(settled)] {
        for (std::size_t i = 0; i < known.size(); ++i) {
          if (provider.errors(static_cast<int>(i)) != known[i]) {
            throw std::runtime_error("a device had found an error before the step");
          }
        }
        *gate = 1;
      },
      {&use, 1});
}

}  // namespace

void builtin::add_device_gates(Registry& registry) {
  const Operator& row = registry.get("gate");
  for (const DeviceKind kind : {DeviceKind::gpu, DeviceKind::sim, DeviceKind::null}) {
    row.add_kernel({.name = "device", .device = kind, .rank = 0}, {DType::u8}, {.run = latch, .issues = true});
  }
}

}  // namespace sluice
