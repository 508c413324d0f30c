// Networks: layers, losses, optimisers, data sets and checkpoints.
#pragma once

#include "sluice/nn/checkpoint.h"     // save_checkpoint, load_checkpoint
#include "sluice/nn/clip.h"           // clip_gradients
#include "sluice/nn/data_loader.h"    // DataLoader
#include "sluice/nn/fashion_mnist.h"  // load_fashion_mnist
#include "sluice/nn/layers.h"         // Linear, Conv2d, MaxPool2d, Relu, Flatten, Sequential
#include "sluice/nn/loss.h"           // cross_entropy, accuracy
#include "sluice/nn/module.h"         // Module
#include "sluice/nn/optimizer.h"      // Sgd, Adam
