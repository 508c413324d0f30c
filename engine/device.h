// Devices and the lanes on them: where operations run.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

enum class DeviceKind : std::uint8_t { cpu, gpu, sim, null };
inline constexpr int kDeviceKinds = 4;

/// A logical device. There are SLUICE_LOGICAL_CPUS CPU devices (default 1), which share the cores. Other kinds exist
/// where a provider of the kind was given (EngineOptions::providers). `sim` devices are simulated on the host. `null`
/// devices do nothing, at once; they show what an op costs the host.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::uint8_t index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

namespace detail {
/// The index that no device of an engine can have. It stands for all numbers out of range, and whoever is given such a
/// device refuses it: "no device cpu(out of range) in this engine".
inline constexpr std::uint8_t kNoDevice = 255;
constexpr std::uint8_t device_number(int index) {
  return index < 0 || index > kNoDevice ? kNoDevice : static_cast<std::uint8_t>(index);
}
}  // namespace detail

constexpr Device cpu(int index = 0) { return {DeviceKind::cpu, detail::device_number(index)}; }
constexpr Device gpu(int index = 0) { return {DeviceKind::gpu, detail::device_number(index)}; }
constexpr Device sim(int index = 0) { return {DeviceKind::sim, detail::device_number(index)}; }
constexpr Device null(int index = 0) { return {DeviceKind::null, detail::device_number(index)}; }

/// "cpu(0)"; "cpu(out of range)" for a number that no device can have, as -1 and 1000.
inline std::string to_string(Device d) {
  constexpr const char* names[kDeviceKinds] = {"cpu", "gpu", "sim", "null"};
  const int kind = static_cast<int>(d.kind);
  return (kind < kDeviceKinds ? std::string(names[kind]) : "kind " + std::to_string(kind)) + "(" +
         (d.index == detail::kNoDevice ? "out of range" : std::to_string(d.index)) + ")";
}

/// Each device has a compute lane and three copy lanes: for what comes from the host, for what goes there, and for what
/// comes from another device of its kind. The engine has one I/O lane. On a device with streams each lane is a stream.
enum class LaneKind : std::uint8_t { compute, copy_in, copy_out, copy_peer, io };
/// The lanes of a device.
inline constexpr LaneKind kDeviceLanes[] = {LaneKind::compute, LaneKind::copy_in, LaneKind::copy_out,
                                            LaneKind::copy_peer};

/// Where an operation runs. Made from a Device it means that device's compute lane.
struct Place {
  Device device;
  LaneKind lane = LaneKind::compute;
  bool given = false;  ///< false: the device of the pushing thread's scope
  constexpr Place() = default;
  constexpr Place(Device d, LaneKind l = LaneKind::compute)
      : device(d), lane(l), given(true) {}  // NOLINT: .on = cpu(1)
};

/// The engine's I/O lane: files, network, foreign deleters.
constexpr Place io() { return {cpu(0), LaneKind::io}; }

}  // namespace sluice
