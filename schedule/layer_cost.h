// What the layers of a network cost: what the planner (planner.h) cuts into stages. Pure and thread-safe.
#pragma once

#include <string>
#include <vector>

namespace sluice::parallel {

/// What a layer takes for one microbatch of `rows` rows.
struct LayerSample {
  double rows = 1;
  double forward = 0, input_gradient = 0, weight_gradient = 0;  ///< seconds
  // Bytes. A value that two neighbouring layers hold, such as a relu's result that is the input of the product behind
  // it, counts once where both are in one stage: `shared` and `kept_shared` say what the layer before holds anyway.
  double saved = 0;        ///< held from the forward to the backward pass, the layer's input included
  double shared = 0;       ///< of `saved`, what the layer before saves too; and an input that no gradient needs
  double output = 0;       ///< of its result, where it does not save it itself: a stage that ends here holds it
  double kept = 0;         ///< held from the gradient of its input to those of its weights
  double both = 0;         ///< of `kept`, what is of `saved` too
  double kept_shared = 0;  ///< of `both`, what the layer before keeps too
  double work = 0;   ///< held beside all that while it runs, forward or backward; a stage needs the most of its layers
  double input = 0;  ///< of its input: what a stage that begins here is sent
};

/// What a layer costs: samples at one or more numbers of rows, and what does not depend on rows. Embeddings and heads
/// are layers like others; the loss counts with the last layer.
struct LayerCost {
  std::string name;
  std::vector<LayerSample> samples = {};
  double weights = 0;    ///< bytes that are always there: parameters, their gradients, the optimiser's state
  double gradients = 0;  ///< bytes of one set of its weights' gradients; 0 for a layer without weights
  double step = 0;       ///< seconds of the optimiser's step
  double push = 0;       ///< seconds of a core that it takes to push what a microbatch does in it

  /// Between two samples and beyond the outer ones on the line through the two nearest, never below 0; one sample is
  /// taken as proportional to rows. Throws std::invalid_argument for no samples, and for samples whose rows do not
  /// increase.
  LayerSample at(double rows) const;
};

}  // namespace sluice::parallel
