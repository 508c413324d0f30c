// Errors as text.
#include "sluice/engine/errors.h"

#include <cstring>

namespace sluice {

namespace {
const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string all_lines(const std::vector<ErrorRef>& roots) {
  std::string text;
  for (const ErrorRef& root : roots) {
    if (!text.empty()) text += '\n';
    text += root->to_string();
  }
  return text;
}
}  // namespace

std::string to_string(const std::source_location& where) {
  std::string text = base_name(where.file_name());
  text += ':';
  text += std::to_string(where.line());
  return text;
}

std::string ErrorRoot::to_string() const {
  std::string text = "[";
  text += operation;
  text += "] ";
  if (!file.empty()) {
    text += base_name(file.c_str());
    text += ':';
    text += std::to_string(line);
    if (!layer.empty()) text.append(" in ").append(layer);
    if (device != Device{}) text.append(" on ").append(sluice::to_string(device));
    text += ": ";
  }
  return text += message;
}

Error::Error(ErrorRef root) : std::runtime_error(root->to_string()), root_(std::move(root)) {}

namespace {
/// The text of all, under the identity of the first.
ErrorRef joined(const std::vector<ErrorRef>& roots) {
  if (roots.size() == 1) return roots.front();
  auto all = std::make_shared<ErrorRoot>(*roots.front());
  const std::string text = all_lines(roots);
  all->operation = "wait_all";
  all->file.clear();
  all->layer.clear();
  all->device = {};
  all->message = std::to_string(roots.size());
  all->message += " errors:\n";
  all->message += text;
  return all;
}
}  // namespace

AggregateError::AggregateError(std::vector<ErrorRef> roots) : Error(joined(roots)), roots_(std::move(roots)) {}

}  // namespace sluice
