// Automatic differentiation.
#pragma once

#include "sluice/autograd/checkpoint.h"  // checkpoint
#include "sluice/autograd/comms.h"       // what a function communicates
#include "sluice/autograd/custom.h"      // apply_custom, on_gradient
#include "sluice/autograd/gradients.h"   // backward, grad
#include "sluice/autograd/halves.h"      // backward_inputs
#include "sluice/autograd/per_shard.h"   // per_shard: a function of shards
#include "sluice/autograd/products.h"    // vjp, jvp, hessian_vector_product
#include "sluice/autograd/shapes.h"      // shapes_of, summary
#include "sluice/autograd/uses.h"        // on_uses
