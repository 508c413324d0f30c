// The tree of layers. Nodes are made once and never deleted, so that ops, tapes and traces can point to them.
#include "sluice/engine/layer.h"

#include <atomic>
#include <memory>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/thread_object.h"

namespace sluice {
namespace detail {

struct Layer {
  std::string path;
  std::size_t name_at = 0;  ///< where the layer's own name begins in `path`
  const Layer* sibling = nullptr;
  mutable std::atomic<const Layer*> children{nullptr};  ///< a list that grows at its head

  std::string_view name() const { return std::string_view(path).substr(name_at); }
};

const char* path_of(const Layer* layer) { return layer ? layer->path.c_str() : ""; }

namespace {

const Layer& root() {
  return first_use([] { return new const Layer; });  // never deleted: ops may run while the process ends
}

const Layer* find(const Layer* first, const Layer* end, std::string_view name) {
  for (; first != end; first = first->sibling) {
    if (first->name() == name) return first;
  }
  return nullptr;
}

const Layer* child(const Layer& parent, std::string_view name) {
  const Layer* seen = parent.children.load(std::memory_order_acquire);
  if (const Layer* known = find(seen, nullptr, name)) return known;
  auto made = std::make_unique<Layer>();
  made->path = parent.path;
  if (!made->path.empty()) made->path += '.';
  made->name_at = made->path.size();
  made->path += name;
  for (;;) {
    const Layer* const searched = seen;
    made->sibling = seen;
    if (parent.children.compare_exchange_strong(seen, made.get(), std::memory_order_acq_rel)) return made.release();
    // Another thread was first: perhaps with this name.
    if (const Layer* known = find(seen, searched, name)) return known;
  }
}

}  // namespace
}  // namespace detail

LayerScope::LayerScope(std::string_view name) : saved_(current_scope().layer) {
  if (!name.empty()) current_scope().layer = detail::child(saved_ ? *saved_ : detail::root(), name);
}

const char* current_layer() { return detail::path_of(detail::ThreadObject<ScopeState>::get().layer); }

std::string call_site(const std::source_location& where) {
  std::string text = to_string(where);
  if (const char* const layer = current_layer(); *layer) text.append(" in ").append(layer);
  return text;
}

}  // namespace sluice
