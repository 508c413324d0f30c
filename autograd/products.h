// Products with the matrices of derivatives of a function, without the matrices.
#pragma once

#include <source_location>
#include <vector>

#include "sluice/autograd/array_function.h"

namespace sluice {

/// What a function gave, and the products. Both are as many as the functions below say; none is an empty handle.
struct ValuesAndProducts {
  std::vector<NDArray> values;    ///< f(xs)
  std::vector<NDArray> products;  ///< zeros where there is no dependence
};

/// In all three, `xs` are floating arrays, leaves or not, which f reads as its arguments and does not write in place.
/// What else f reads counts as constant. f is called once, and recorded even inside of a NoGrad scope. The .grad() of
/// leaves does not change. Values and products are themselves recorded, for gradients with respect to xs, to the other
/// arrays given and to whatever f reads, if the call is outside of a NoGrad scope and one of these wants gradients;
/// else they have no history. Nothing waits. ArrayError is thrown for shapes and dtypes that do not fit, and for
/// operators in f without the derivatives that are asked for.

/// Reverse mode: products[i] is the sum over j of cotangents[j] * d f_j / d xs[i], of xs[i]'s shape. There is a
/// cotangent for each result of f, of its shape and dtype; an empty handle counts as 1 for a result with one element.
ValuesAndProducts vjp(const ArrayFunction& f, const NDArrays& xs, const NDArrays& cotangents,
                      std::source_location where = std::source_location::current());
/// Forward mode's product: products[j] is the sum over i of d f_j / d xs[i] * tangents[i], of the shape of f's result
/// j. There is a tangent for each of xs, of its shape and dtype. It is made from reverse mode twice, and needs memory
/// as that does: second gradients of the operators in f.
ValuesAndProducts jvp(const ArrayFunction& f, const NDArrays& xs, const NDArrays& tangents,
                      std::source_location where = std::source_location::current());
/// f has one result of one element; products[i] is the sum over k of d2 f / d xs[i] d xs[k] * vs[k], of xs[i]'s shape.
/// There is one of `vs` for each of xs, of its shape and dtype.
ValuesAndProducts hessian_vector_product(const ArrayFunction& f, const NDArrays& xs, const NDArrays& vs,
                                         std::source_location where = std::source_location::current());

}  // namespace sluice
