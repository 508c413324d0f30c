// Mesh: devices in a grid whose axes have names. Layouts (layout.h) say along which of them an array is cut.
//
//   const Mesh mesh({{"dp", 2}, {"tp", 4}});            // cpu(0) to cpu(7); the last axis goes fastest
//   const Mesh two({{"tp", 2}}, {gpu(0), gpu(1)});
#pragma once

#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine/device.h"

namespace sluice {

/// A value: copies share what they hold, and never change. Thread-safe.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  using Where = const std::source_location&;

  /// No mesh: an array on it has no layout.
  Mesh() = default;
  /// Over the devices 0, 1, ... of a kind. They need not be there before an operation runs on them.
  /// Throws UsageError for no axes or more than kMostAxes, for a size below 1, and for a name that is empty or used
  /// twice.
  explicit Mesh(std::vector<Axis> axes, DeviceKind kind = DeviceKind::cpu,
                Where where = std::source_location::current());
  /// Over these devices, in row-major order of the axes; a device may occur more than once. Throws UsageError too where
  /// their number is not the product of the sizes.
  Mesh(std::vector<Axis> axes, std::vector<Device> devices, Where where = std::source_location::current());

  static constexpr int kMostAxes = 8;

  explicit operator bool() const { return data_ != nullptr; }
  int axes() const { return data_ ? static_cast<int>(data_->axes.size()) : 0; }
  const std::string& name(int axis) const { return data_->axes[static_cast<std::size_t>(axis)].name; }
  int size(int axis) const { return data_->axes[static_cast<std::size_t>(axis)].size; }
  /// The axis of this name. Throws UsageError, which lists the names, for another one.
  int axis(std::string_view name, Where where = std::source_location::current()) const;
  /// How many places it has. They are counted by rank, from 0, in row-major order.
  int places() const { return data_ ? static_cast<int>(data_->devices.size()) : 0; }
  Device device(int rank) const { return data_->devices[static_cast<std::size_t>(rank)]; }
  /// Where a place lies along an axis.
  int coordinate(int rank, int axis) const {
    return rank / data_->strides[static_cast<std::size_t>(axis)] % size(axis);
  }
  /// How far apart in rank neighbours along an axis are.
  int stride(int axis) const { return data_->strides[static_cast<std::size_t>(axis)]; }

  friend bool operator==(const Mesh& a, const Mesh& b) {
    if (a.data_ == b.data_) return true;
    return a.data_ && b.data_ && a.data_->axes == b.data_->axes && a.data_->devices == b.data_->devices;
  }

 private:
  struct Data {
    std::vector<Axis> axes;
    std::vector<Device> devices;
    std::vector<int> strides;
  };
  std::shared_ptr<const Data> data_;
};

/// "dp 2 x tp 4 on cpu(0) to cpu(7)".
std::string to_string(const Mesh& mesh);

}  // namespace sluice
