"""Local SGD: replicas train alone and periodically average their weights."""
