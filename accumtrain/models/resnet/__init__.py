"""ResNets and RevNets: blocks, stages, and the convolutions that are kept."""
