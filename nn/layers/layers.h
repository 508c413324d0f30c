// All layers.
#pragma once

#include "sluice/nn/layers/add_lora.h"
#include "sluice/nn/layers/attention.h"
#include "sluice/nn/layers/convolution.h"
#include "sluice/nn/layers/linear.h"
#include "sluice/nn/layers/normalization.h"
#include "sluice/nn/layers/recurrent.h"
