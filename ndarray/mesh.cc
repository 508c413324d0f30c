#include "sluice/ndarray/mesh.h"

#include <cstdint>

#include "sluice/engine/errors.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(const char* what, const std::source_location& where, const std::string& why) {
  throw UsageError(std::string("[") + what + "] " + to_string(where) + ": " + why);
}

/// The product of the sizes.
std::int64_t check(const std::vector<Mesh::Axis>& axes, const std::source_location& where) {
  if (axes.empty() || axes.size() > Mesh::kMostAxes) {
    refuse("Mesh", where, std::to_string(axes.size()) + " axes; a mesh has 1 to " + std::to_string(Mesh::kMostAxes));
  }
  constexpr std::int64_t kMostPlaces = 1 << 20;
  std::int64_t places = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto& [name, size] = axes[i];
    if (name.empty()) refuse("Mesh", where, "an axis without a name");
    for (std::size_t k = 0; k < i; ++k) {
      if (axes[k].name == name) refuse("Mesh", where, "two axes are called " + name);
    }
    if (size < 1) refuse("Mesh", where, "the axis " + name + " has size " + std::to_string(size));
    places *= size;
    if (places > kMostPlaces) refuse("Mesh", where, "more than " + std::to_string(kMostPlaces) + " places");
  }
  return places;
}

std::vector<Device> first_of(DeviceKind kind, std::int64_t n, const std::source_location& where) {
  constexpr std::int64_t kMostOfKind = 255;
  if (n > kMostOfKind) refuse("Mesh", where, std::to_string(n) + " places; there are no more devices than 255");
  std::vector<Device> devices;
  for (std::int64_t i = 0; i < n; ++i) devices.push_back({kind, static_cast<std::uint8_t>(i)});
  return devices;
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes, DeviceKind kind, Where where)
    : Mesh(axes, first_of(kind, check(axes, where), where), where) {}

Mesh::Mesh(std::vector<Axis> axes, std::vector<Device> devices, Where where) {
  const std::int64_t places = check(axes, where);
  if (places != static_cast<std::int64_t>(devices.size())) {
    refuse("Mesh", where,
           std::to_string(devices.size()) + " devices for " + std::to_string(places) +
               (places == 1 ? " place" : " places"));
  }
  auto data = std::make_shared<Data>();
  data->strides.resize(axes.size());
  int stride = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    data->strides[i] = stride;
    stride *= axes[i].size;
  }
  data->axes = std::move(axes);
  data->devices = std::move(devices);
  data_ = std::move(data);
}

int Mesh::axis(std::string_view name, Where where) const {
  std::string names;
  for (int i = 0; i < axes(); ++i) {
    if (this->name(i) == name) return i;
    names += (i > 0 ? ", " : "") + this->name(i);
  }
  refuse("Mesh", where, "no axis " + std::string(name) + (names.empty() ? "" : "; there are " + names));
}

std::string to_string(const Mesh& mesh) {
  if (!mesh) return "no mesh";
  std::string text;
  for (int i = 0; i < mesh.axes(); ++i) {
    text += (i > 0 ? " x " : "") + mesh.name(i) + " " + std::to_string(mesh.size(i));
  }
  text += " on " + to_string(mesh.device(0));
  if (mesh.places() > 1) text += (mesh.places() > 2 ? " to " : " and ") + to_string(mesh.device(mesh.places() - 1));
  return text;
}

}  // namespace sluice
