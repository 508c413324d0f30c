#include "sluice/nn/files/sources.h"

#include <exception>
#include <string_view>
#include <utility>

#include "sluice/autograd/shapes.h"
#include "sluice/operators/creation.h"

namespace sluice::nn::detail {
namespace {

/// The texts that the stars of a beginning stand for, and the rest of the name behind it; none: it does not fit.
struct Fit {
  std::vector<std::string> stars;
  std::string rest;
};

std::optional<Fit> fit(std::string_view from, std::string_view name) {
  const std::size_t star = from.find('*');
  if (star == from.npos) {
    if (!name.starts_with(from)) return std::nullopt;
    return Fit{{}, std::string(name.substr(from.size()))};
  }
  if (!name.starts_with(from.substr(0, star))) return std::nullopt;
  const std::string_view behind = name.substr(star);
  for (std::size_t n = 1; n <= behind.size() && behind[n - 1] != '.'; ++n) {
    if (auto found = fit(from.substr(star + 1), behind.substr(n))) {
      found->stars.insert(found->stars.begin(), std::string(behind.substr(0, n)));
      return found;
    }
  }
  return std::nullopt;
}

std::string filled(std::string_view pattern, const Fit& fit) {
  std::string text;
  std::size_t star = 0;
  for (const char c : pattern) c == '*' ? text += fit.stars[star++] : text += c;
  return text + fit.rest;
}

}  // namespace

std::string Source::text() const {
  std::string text;
  for (const std::string& name : tensors) {
    if (!name.empty()) text += (text.empty() ? "'" : ", '") + name + "'";
  }
  return text;
}

std::map<std::string, Source> sources_of(const std::string& item, const SavedFile& file, const LoadOptions& options,
                                         LoadPlan& plan) {
  std::map<std::string, Source> sources;
  const auto put_into = [&](const std::string& path, const Rename* rule, std::size_t i, const std::string& full,
                            const Fit& fit) {
    Source& source = sources[path];
    if (source.tensors.empty()) {
      source.rule = rule;
      source.tensors.resize(rule ? rule->from.size() : 1);
      for (std::size_t k = 0; k < source.tensors.size(); ++k) {
        source.expected.push_back(rule ? join(item, "") + filled(rule->from[k], fit) : full);
      }
    }
    if (source.rule == rule && source.tensors[i].empty()) {
      source.tensors[i] = full;
    } else {
      plan.wrong.push_back(source.text() + " and '" + full + "' would both become '" + join(item, path) + "'");
    }
  };
  const auto add = [&](const std::string& full) {
    if (!full.starts_with(join(item, ""))) return;
    const std::string name = full.substr(join(item, "").size());
    if (!options.ignore.empty() && matches_pattern(options.ignore, name)) return;
    for (const Rename& rule : options.rename) {
      for (std::size_t i = 0; i < rule.from.size(); ++i) {
        if (const auto found = fit(rule.from[i], name)) {
          return put_into(filled(rule.to, *found), &rule, i, full, *found);
        }
      }
    }
    put_into(name, nullptr, 0, full, {});
  };
  for (const auto& [full, tensor] : file.stored) add(full);
  for (const auto& [full, dtype] : file.refused) add(full);
  return sources;
}

std::optional<Incoming> incoming(const Source& source, const std::string& path, const SavedFile& file, LoadPlan& plan) {
  std::vector<StoredTensor> tensors;
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    const std::string& full = source.tensors[i];
    const auto found = file.stored.find(full);
    if (full.empty()) {
      plan.wrong.push_back("no tensor '" + source.expected[i] + "', wanted beside " + source.text() + " for '" + path +
                           "'");
    } else if (found == file.stored.end()) {
      plan.wrong.push_back("'" + full + "' is of a dtype " + file.refused.at(full) + " that Sluice lacks");
    } else {
      tensors.push_back(found->second);
    }
  }
  if (tensors.size() != source.tensors.size()) return std::nullopt;
  if (!source.converted()) return Incoming{tensors[0].array, tensors[0].shape, tensors[0].dtype};
  const Conversion& convert = source.rule->convert;
  const auto on_host = [&convert](const auto& array_of, const std::vector<StoredTensor>& from) {
    const DeviceScope host(cpu(0));
    std::vector<NDArray> arrays;
    for (const StoredTensor& tensor : from) arrays.push_back(array_of(tensor));
    return convert(arrays);
  };
  try {
    for (const StoredTensor& tensor : tensors) {
      if (tensor.dtype == DType::boolean) (void)tensor.array();  // it may be refused for what it holds
    }
    const auto stand_in = [](const StoredTensor& tensor) { return empty(tensor.shape, tensor.dtype); };
    const Spec made = shapes_of([&] { return on_host(stand_in, tensors); }).results.at(0);
    const auto make = [on_host, tensors] {
      return on_host([](const StoredTensor& tensor) { return tensor.array(); }, tensors);
    };
    return Incoming{make, made.shape, made.dtype};
  } catch (const std::exception& error) {
    plan.wrong.push_back(source.text() + " for '" + path + "': " + error.what());
    return std::nullopt;
  }
}

}  // namespace sluice::nn::detail
