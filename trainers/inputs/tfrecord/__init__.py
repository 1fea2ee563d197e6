"""TFRecord files as a data set, in memory or as a stream."""
