// All operators on arrays.
#pragma once

#include "sluice/operators/activation.h"       // gelu and softplus with options, glu
#include "sluice/operators/add_n.h"            // add_n, accumulate
#include "sluice/operators/attention.h"        // attention
#include "sluice/operators/closeness.h"        // isclose, allclose, array_equal
#include "sluice/operators/communication.h"    // what arrays on a mesh send between places
#include "sluice/operators/convolution.h"      // conv2d, conv_transpose2d, max_pool2d, avg_pool2d
#include "sluice/operators/creation.h"         // zeros, ones, full, arange, uniform, normal
#include "sluice/operators/decompositions.h"   // cholesky, qr, svd, eigh, solve, inv, det
#include "sluice/operators/elementwise.h"      // + - * /, exp, relu, where, ...
#include "sluice/operators/indexing.h"         // gather, scatter, index_select, take, masked_fill, nonzero
#include "sluice/operators/infer.h"            // what an operator would give, from specs
#include "sluice/operators/linear_algebra.h"   // matmul, einsum, linear
#include "sluice/operators/loss.h"             // cross_entropy, mse_loss, ...
#include "sluice/operators/mixing.h"           // clip, lerp, addcmul
#include "sluice/operators/network.h"          // dropout, embedding, lstm, gru, rotary_embedding
#include "sluice/operators/normalization.h"    // layer_norm, rms_norm, group_norm, batch_norm
#include "sluice/operators/optimizer_steps.h"  // sgd_step, adam_step
#include "sluice/operators/placed.h"           // place, reshard, whole: arrays on a mesh
#include "sluice/operators/placement.h"        // how a row's operands may lie on a mesh
#include "sluice/operators/rearranging.h"      // split, pad, roll, tile, repeat, meshgrid, tril
#include "sluice/operators/reduction.h"        // sum, mean, max, any, argmax, softmax
#include "sluice/operators/registry.h"         // rows, kernels, apply
#include "sluice/operators/scan.h"             // cumsum, cumprod, cummax, diff
#include "sluice/operators/shaping.h"          // concat, stack, one_hot, take_rows
#include "sluice/operators/sorting.h"          // sort, topk, searchsorted, bincount, unique
#include "sluice/operators/statistics.h"       // variance, norm, quantile
#include "sluice/operators/unfolding.h"        // unfold2d
#include "sluice/operators/waiting.h"          // which functions wait
