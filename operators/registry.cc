#include "sluice/operators/registry.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/builtin.h"
#include "sluice/operators/composing.h"

namespace sluice {

// ---- signatures

void Signature::fail(const std::string& why) const {
  std::string text;
  for (int i = 0; i < inputs(); ++i) text += (text.empty() ? "" : " x ") + to_string(shape(i));
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
  if (!has_arithmetic(dtype(i))) fail("no arithmetic in " + std::string(name_of(dtype(i))) + "; use to(dtype)");
}

void Signature::sums(int i) const {
  arithmetic(i);
  if (!has_sums(dtype(i))) fail(std::string(name_of(dtype(i))) + " is too narrow for sums; use to(dtype)");
}

void Signature::floating(int i) const {
  if (!is_floating(dtype(i))) fail("needs a floating dtype, not " + std::string(name_of(dtype(i))));
}

void Signature::bits(int i) const {
  if (!has_bits(dtype(i))) fail("needs bool or integers, not " + std::string(name_of(dtype(i))));
}

void Signature::rank(int i, int wanted) const {
  if (shape(i).rank() != wanted) fail("input " + std::to_string(i) + " must have " + std::to_string(wanted) + " axes");
}

Dims Signature::broadcast() const {
  const Dims& first = shape(0);
  int rank = first.rank();
  bool same = true;
  for (int i = 1; i < inputs(); ++i) {
    const Dims& other = shape(i);
    same = same && other == first;
    rank = std::max(rank, other.rank());
  }
  if (same) return first;
  Dims out;
  for (int axis = 0; axis < rank; ++axis) {
    std::int64_t size = 1;
    for (int i = 0; i < inputs(); ++i) {
      const Dims& given = shape(i);
      const int at = axis - (rank - given.rank());
      if (at < 0 || given[at] == 1) continue;
      if (size != 1 && given[at] != size) fail("shapes do not broadcast");
      size = given[at];
    }
    out.push_back(size);
  }
  return out;
}

// ---- kernels

bool Operator::Entry::fits(const Signature* call) const {
  if (takes_all) return true;
  if (!call) return false;
  const int inputs = call->inputs();
  for (int i = 0; i < static_cast<int>(dtypes.size()); ++i) {
    const std::span<const Spec> outputs = call->outputs();
    if (i >= inputs + static_cast<int>(outputs.size())) return false;
    const DType there = i < inputs ? call->dtype(i) : outputs[static_cast<std::size_t>(i - inputs)].dtype;
    if (there != dtypes[static_cast<std::size_t>(i)]) return false;
  }
  return !kernel.takes || kernel.takes(*call);
}

const Kernel* Operator::search(DeviceKind device, DType dtype, const Signature* call, int max_rank) const {
  if (const Kernel* own = listed(device, dtype, call, max_rank)) return own;
  const bool on_host = device == DeviceKind::sim || device == DeviceKind::null;
  return on_host ? listed(DeviceKind::cpu, dtype, call, 0) : nullptr;
}

const Kernel* Operator::listed(DeviceKind device, DType dtype, const Signature* call, int max_rank) const {
  for (const Entry* entry = list_of(device, dtype).load(std::memory_order_acquire); entry;
       entry = entry->next.load(std::memory_order_acquire)) {
    if (entry->kernel.backend.rank <= max_rank && entry->fits(call)) return &entry->kernel;
  }
  return nullptr;
}

std::vector<const Kernel*> Operator::kernels(DeviceKind device, DType dtype) const {
  std::vector<const Kernel*> found;
  for (const Entry* entry = list_of(device, dtype).load(std::memory_order_acquire); entry;
       entry = entry->next.load(std::memory_order_acquire)) {
    found.push_back(&entry->kernel);
  }
  return found;
}

void Operator::add_kernel(const Backend& backend, std::span<const DType> dtypes, const Kernel& kernel) const {
  const auto refuse = [&](const char* why) {
    throw UsageError("[" + std::string(name) + "] a kernel of " + backend.name + ": " + why);
  };
  if (!kernel.run) refuse("no function");
  if (compose && detail::composing() == detail::Composing::always) return;
  const bool mixes = dtypes.size() > 1;
  if (dtypes.empty() || (mixes && key >= static_cast<int>(dtypes.size()))) refuse("no dtype for its key");

  // Where output 0 is the key, its place in `dtypes` depends on the number of inputs: such a kernel, if it mixes
  // dtypes, goes to every list, and fits() looks at each.
  const bool every = mixes && key < 0;
  const DType of_key = mixes && key >= 0 ? dtypes[static_cast<std::size_t>(key)] : dtypes[0];
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::kernels));
  for (int t = 0; t < kDTypeCount; ++t) {
    if (!every && static_cast<DType>(t) != of_key) continue;
    auto* entry = new Entry{kernel, !mixes && !kernel.takes, {}, {nullptr}};
    entry->kernel.backend = backend;
    if (mixes) entry->dtypes.assign(dtypes.begin(), dtypes.end());
    // Readers may walk the list meanwhile: the entry is whole before it is linked in, and none is ever taken out.
    List* at = &list_of(backend.device, static_cast<DType>(t));
    while (const Entry* next = at->load(std::memory_order_relaxed)) {
      if (next->kernel.backend.rank <= backend.rank) break;
      at = &next->next;
    }
    entry->next.store(at->load(std::memory_order_relaxed), std::memory_order_relaxed);
    at->store(entry, std::memory_order_release);
  }
}

// ---- rows

struct Registry::State {
  std::map<std::string, std::unique_ptr<Operator>, std::less<>> rows;
};

Registry::Registry() : state_(std::make_unique<State>()) {
  builtin::add_elementwise_rows(*this);
  builtin::add_creation_rows(*this);
  builtin::add_shaping_rows(*this);
  builtin::add_indexing_rows(*this);
  builtin::add_reduction_rows(*this);
  builtin::add_scan_rows(*this);
  builtin::add_sorting_rows(*this);
  builtin::add_loss_rows(*this);
  builtin::add_matrix_rows(*this);
  builtin::add_decomposition_rows(*this);
  builtin::add_convolution_rows(*this);
  builtin::add_unfolding_rows(*this);
  builtin::add_attention_rows(*this);
  builtin::add_network_rows(*this);
  builtin::add_recurrent_rows(*this);
  builtin::add_normalization_rows(*this);
  builtin::add_add_n_rows(*this);
  builtin::add_optimizer_rows(*this);
  builtin::add_reference_kernels(*this);
  builtin::add_cpu_kernels(*this);
  builtin::add_device_transfers(*this);
  builtin::add_device_gates(*this);
  builtin::add_cuda_kernels(*this);
}

Registry& Registry::instance() {
  return detail::first_use([] { return new Registry(); });  // never destroyed: ops may run while the process ends
}

const Operator& Registry::add(std::unique_ptr<Operator> row) {
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::operators));
  const auto [at, fresh] = state_->rows.try_emplace(row->name, nullptr);
  if (!fresh) throw UsageError("[" + std::string(row->name) + "] an operator of this name is there already");
  at->second = std::move(row);
  return *at->second;
}

const Operator* Registry::find(std::string_view name) const {
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::operators));
  const auto at = state_->rows.find(name);
  return at == state_->rows.end() ? nullptr : at->second.get();
}

const Operator& Registry::get(std::string_view name) const {
  if (const Operator* row = find(name)) return *row;
  throw UsageError("no operator is named " + std::string(name));
}

std::vector<const Operator*> Registry::all() const {
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::operators));
  std::vector<const Operator*> rows;
  for (const auto& [name, row] : state_->rows) rows.push_back(row.get());
  return rows;
}

}  // namespace sluice
