// All operators on arrays.
#pragma once

#include "sluice/operators/convolution.h"      // conv2d, max_pool2d
#include "sluice/operators/creation.h"         // zeros, ones, full, arange, uniform, normal
#include "sluice/operators/elementwise.h"      // + - * /, exp, relu, where, ...
#include "sluice/operators/indexing.h"         // gather, scatter, index_select, take, masked_fill, nonzero
#include "sluice/operators/linear_algebra.h"   // matmul, linear
#include "sluice/operators/loss.h"             // cross_entropy
#include "sluice/operators/optimizer_steps.h"  // sgd_step, adam_step, accumulate
#include "sluice/operators/rearranging.h"      // split, pad, roll, tile, repeat, meshgrid, tril
#include "sluice/operators/reduction.h"        // sum, mean, max, min, softmax
#include "sluice/operators/registry.h"         // rows, kernels, apply
#include "sluice/operators/shaping.h"          // concat, stack, one_hot, take_rows
