#include "sluice/nn/checkpoint.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "sluice/autograd/gradients.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/formats/safetensors.h"

namespace sluice {
namespace {

constexpr const char* kStatePrefix = "optimizer.";

std::vector<NamedArray> all_arrays(const std::vector<NamedParameter>& parameters,
                                   const std::vector<NamedArray>& state) {
  std::vector<NamedArray> list;
  for (const NamedParameter& p : parameters) list.push_back({p.name, *p.value});
  for (const NamedArray& s : state) list.push_back({kStatePrefix + s.name, s.value});
  return list;
}

std::string describe(DType dtype, const Dims& shape) { return std::string(name_of(dtype)) + " " + to_string(shape); }

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const std::vector<NamedParameter>& parameters,
                     const std::vector<NamedArray>& state, const std::map<std::string, std::string>& metadata,
                     std::source_location where) {
  const detail::Called called("save_checkpoint", where);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<NamedTensor> tensors;
  for (const NamedArray& array : all_arrays(parameters, state)) {
    bytes.push_back(array.value.to_bytes(where));  // moved, later, with its memory: the span stays right
    tensors.push_back({array.name, array.value.dtype(), array.value.shape(), bytes.back()});
  }
  save_safetensors(path, tensors, metadata);
}

std::map<std::string, std::string> load_checkpoint(const std::filesystem::path& path,
                                                   const std::vector<NamedParameter>& parameters,
                                                   const std::vector<NamedArray>& state, std::source_location where) {
  const detail::Called called("load_checkpoint", where);
  const Safetensors file = load_safetensors(path);
  const std::vector<NamedArray> wanted = all_arrays(parameters, state);
  std::map<std::string, const HostTensor*> found;
  for (const auto& [name, tensor] : file.tensors) {
    if (!state.empty() || !name.starts_with(kStatePrefix)) found.emplace(name, &tensor);
  }
  for (const NamedArray& array : wanted) {
    const std::string needs = describe(array.value.dtype(), array.value.shape());
    const auto it = found.find(array.name);
    if (it == found.end()) file.find(array.name);  // throws where it is of a dtype that Sluice lacks
    if (it == found.end()) throw FormatError(path, "no tensor '" + array.name + "', wanted as " + needs);
    const HostTensor& tensor = *it->second;
    if (tensor.dtype != array.value.dtype() || tensor.shape != array.value.shape()) {
      throw FormatError(path,
                        "tensor '" + array.name + "' is " + describe(tensor.dtype, tensor.shape) + ", wanted " + needs);
    }
  }
  for (const auto& [name, tensor] : found) {
    const auto same_name = [&wanted_name = name](const NamedArray& array) { return array.name == wanted_name; };
    if (std::none_of(wanted.begin(), wanted.end(), same_name)) {
      throw FormatError(path, "tensor '" + name + "' (" + describe(tensor->dtype, tensor->shape) +
                                  ") is not among the arrays to load into");
    }
  }

  NoGrad no_grad;
  for (const NamedArray& array : wanted) {
    const HostTensor& tensor = *found.at(array.name);
    array.value.assign(from_bytes(tensor.bytes, tensor.shape, tensor.dtype, cpu(0)).to(array.value.device()));
  }
  return file.metadata;
}

std::string to_text(const RandomStream::State& state) {
  return std::to_string(state.seed) + " " + std::to_string(state.stream) + " " + std::to_string(state.draw);
}

RandomStream::State random_state(const std::string& text) {
  RandomStream::State state;
  std::istringstream in(text);
  if (text.find('-') != std::string::npos || !(in >> state.seed >> state.stream >> state.draw) ||
      !(in >> std::ws).eof()) {
    throw std::invalid_argument("random stream state '" + text + "': wants three numbers, seed, stream and draw");
  }
  return state;
}

}  // namespace sluice
