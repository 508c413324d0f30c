// Networks as plain structs: everything of sluice::nn.
#pragma once

#include "sluice/nn/data/csv.h"           // read_csv
#include "sluice/nn/data/images.h"        // ImageFolder, read_image
#include "sluice/nn/data/loader.h"        // Loader
#include "sluice/nn/data/mixup.h"         // mixup
#include "sluice/nn/data/sequences.h"     // padded, packed
#include "sluice/nn/data/table.h"         // Table, split, fashion_mnist, cifar10, read_tokens
#include "sluice/nn/data/windows.h"       // Windows
#include "sluice/nn/files/checkpoints.h"  // Checkpoints
#include "sluice/nn/files/gradients.h"    // Gradients
#include "sluice/nn/files/save.h"         // save, load
#include "sluice/nn/layers/layers.h"      // Linear, Conv2d, SelfAttention, ...
#include "sluice/nn/metrics/metrics.h"    // Mean, Accuracy, Perplexity
#include "sluice/nn/net/net.h"            // initialise, freeze, to, blend, print
#include "sluice/nn/net/placing.h"        // place: nets on a mesh
#include "sluice/nn/net/sequential.h"     // Sequential
#include "sluice/nn/net/stages.h"         // Stages, run
#include "sluice/nn/optim/clip.h"         // clip_gradients
#include "sluice/nn/optim/optimizer.h"    // Optimizer
#include "sluice/nn/optim/plateau.h"      // Plateau
#include "sluice/nn/optim/rules.h"        // Sgd, AdamW, Lion, Muon, ...
#include "sluice/nn/report/report.h"      // Log, Progress, Patience, Profile, Interrupt
