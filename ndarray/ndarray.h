// The array library: handles, views, host access, files. Operators on arrays: sluice/operators/operators.h.
#pragma once

#include "sluice/ndarray/anomaly.h"      // the first NaN or infinity of a program
#include "sluice/ndarray/dims.h"         // shapes
#include "sluice/ndarray/dlpack.h"       // memory shared with other libraries
#include "sluice/ndarray/dtype.h"        // element types
#include "sluice/ndarray/files.h"        // .npy, .npz, .safetensors
#include "sluice/ndarray/formats/idx.h"  // load_idx
#include "sluice/ndarray/grad_mode.h"    // NoGrad, WithGrad
#include "sluice/ndarray/interpreter.h"  // code of a program's own around each call
#include "sluice/ndarray/layout.h"       // how an array lies on a mesh
#include "sluice/ndarray/mesh.h"         // devices in a grid with named axes
#include "sluice/ndarray/nd_array.h"     // NDArray, Operand, from, empty, partitioned
#include "sluice/ndarray/push.h"         // ops of one's own on arrays
#include "sluice/ndarray/slice.h"        // slice, all
#include "sluice/ndarray/spec.h"         // shape, dtype and device
#include "sluice/ndarray/tensor_view.h"  // what kernels see
