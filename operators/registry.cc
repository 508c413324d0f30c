#include "sluice/operators/registry.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "sluice/operators/builtin.h"

namespace sluice {

// ---- signatures

void Signature::fail(const std::string& why) const {
  std::string text;
  for (const NDArray* x : inputs_) text += (text.empty() ? "" : " x ") + to_string(x->shape());
  throw ArrayError(name_, where_, text + (text.empty() ? "" : ": ") + why);
}

void Signature::same_dtypes(int first) const {
  for (int i = first + 1; i < inputs(); ++i) {
    if (dtype(i) != dtype(first)) {
      fail("dtypes " + std::string(name_of(dtype(first))) + " and " + std::string(name_of(dtype(i))) +
           " do not mix; use to(dtype)");
    }
  }
}

void Signature::arithmetic(int i) const {
  const DType t = dtype(i);
  if (t != DType::f32 && t != DType::f64 && t != DType::i32 && t != DType::i64) {
    fail("no arithmetic in " + std::string(name_of(t)) + "; use to(dtype)");
  }
}

void Signature::floating(int i) const {
  if (dtype(i) != DType::f32 && dtype(i) != DType::f64) {
    fail("needs f32 or f64, not " + std::string(name_of(dtype(i))));
  }
}

void Signature::rank(int i, int wanted) const {
  if (shape(i).rank() != wanted) fail("input " + std::to_string(i) + " must have " + std::to_string(wanted) + " axes");
}

Dims Signature::broadcast() const {
  if (std::all_of(inputs_.begin() + 1, inputs_.end(), [&](const NDArray* x) { return x->shape() == shape(0); })) {
    return shape(0);
  }
  int rank = 0;
  for (const NDArray* x : inputs_) rank = std::max(rank, x->rank());
  Dims out;
  for (int axis = 0; axis < rank; ++axis) {
    std::int64_t size = 1;
    for (const NDArray* x : inputs_) {
      const Dims& shape = x->shape();
      const int at = axis - (rank - shape.rank());
      if (at < 0 || shape[at] == 1) continue;
      if (size != 1 && shape[at] != size) fail("shapes do not broadcast");
      size = shape[at];
    }
    out.push_back(size);
  }
  return out;
}

// ---- kernels

const Kernel* Operator::kernel(DeviceKind device, DType dtype, int max_rank) const {
  if (const Kernel* own = listed_kernel(device, dtype, max_rank)) return own;
  return device == DeviceKind::sim || device == DeviceKind::null ? listed_kernel(DeviceKind::cpu, dtype, 0) : nullptr;
}

const Kernel* Operator::listed_kernel(DeviceKind device, DType dtype, int max_rank) const {
  const auto& slot = kernels_[static_cast<std::size_t>(device)][static_cast<std::size_t>(dtype)];
  for (const List* entry = slot.load(std::memory_order_acquire); entry;
       entry = entry->next.load(std::memory_order_acquire)) {
    if (entry->kernel.rank <= max_rank) return &entry->kernel;
  }
  return nullptr;
}

void Operator::add_kernel(DeviceKind device, DType dtype, const Kernel& kernel) const {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  // Readers may walk the list meanwhile: the entry is whole before it is linked in, and none is ever taken out.
  auto* at = &kernels_[static_cast<std::size_t>(device)][static_cast<std::size_t>(dtype)];
  while (const List* entry = at->load(std::memory_order_relaxed)) {
    if (entry->kernel.rank <= kernel.rank) break;  // of equal ranks the last one added counts
    at = &entry->next;
  }
  at->store(new List{kernel, at->load(std::memory_order_relaxed)}, std::memory_order_release);
}

// ---- rows

struct Registry::State {
  mutable std::mutex mutex;
  std::map<std::string, std::unique_ptr<Operator>, std::less<>> rows;
};

Registry::Registry() : state_(std::make_unique<State>()) {
  builtin::add_elementwise_rows(*this);
  builtin::add_creation_rows(*this);
  builtin::add_movement_rows(*this);
  builtin::add_reduction_rows(*this);
  builtin::add_loss_rows(*this);
  builtin::add_matrix_rows(*this);
  builtin::add_convolution_rows(*this);
  builtin::add_optimizer_rows(*this);
  builtin::add_reference_elementwise(*this);
  builtin::add_reference_kernels(*this);
  builtin::add_cpu_elementwise(*this);
  builtin::add_cpu_kernels(*this);
  builtin::add_device_transfers(*this);
}

Registry& Registry::instance() {
  static auto* const registry = new Registry();  // never destroyed: ops may run while the process ends
  return *registry;
}

const Operator& Registry::add(std::unique_ptr<Operator> row) {
  std::lock_guard lock(state_->mutex);
  const auto [at, fresh] = state_->rows.try_emplace(row->name, nullptr);
  if (!fresh) throw UsageError("[" + std::string(row->name) + "] an operator of this name is there already");
  at->second = std::move(row);
  return *at->second;
}

const Operator* Registry::find(std::string_view name) const {
  std::lock_guard lock(state_->mutex);
  const auto at = state_->rows.find(name);
  return at == state_->rows.end() ? nullptr : at->second.get();
}

const Operator& Registry::get(std::string_view name) const {
  if (const Operator* row = find(name)) return *row;
  throw UsageError("no operator is named " + std::string(name));
}

std::vector<const Operator*> Registry::all() const {
  std::lock_guard lock(state_->mutex);
  std::vector<const Operator*> rows;
  for (const auto& [name, row] : state_->rows) rows.push_back(row.get());
  return rows;
}

}  // namespace sluice
