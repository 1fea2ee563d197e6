"""Local SGD: replicas train alone and average their weights at times."""
