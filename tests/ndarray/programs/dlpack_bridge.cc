// What dlpack_numpy.py calls through ctypes: arrays of Sluice as DLPack tensors, and the other way.
#include <optional>

#include "sluice/engine/engine.h"
#include "sluice/ndarray/dlpack.h"
#include "sluice/operators/operators.h"

namespace {

sluice::NDArray array;

template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

extern "C" {

/// The array that the other functions are about: 0, 1, ... 11 as f32, (3, 4).
void bridge_make() { array = sluice::arange(0, 12, 1, sluice::DType::f32).reshape({3, 4}); }
/// Takes over a tensor of DLPack as that array; 0 where it is refused.
int bridge_take(sluice::dlpack::ManagedTensor* tensor) {
  return guarded([&] {
    array = sluice::from_dlpack(tensor);
    return 1;
  });
}
/// The array, transposed, as a tensor of DLPack; null where it cannot be.
sluice::dlpack::ManagedTensor* bridge_give() {
  return guarded([] { return sluice::to_dlpack_unversioned(array.transpose()); });
}
const void* bridge_address() {
  const auto [version, holds] = sluice::detail::borrow_array(array, false, std::source_location::current());
  return version->buffer().data() + array.offset() * static_cast<std::int64_t>(sluice::size_of(array.dtype()));
}
std::int64_t bridge_stride(int axis) { return array.strides()[axis]; }
double bridge_sum() { return sluice::sum(array.to(sluice::DType::f64)).item<double>(); }
void bridge_add(double number) {
  array += sluice::full({}, number, sluice::DType::f64).to(array.dtype());
  array.wait();
}
/// Lets go of the array, and waits for what follows from that.
void bridge_drop() {
  array = sluice::NDArray();
  sluice::default_engine().wait_all();
}
}
