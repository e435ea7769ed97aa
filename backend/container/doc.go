// Package container is the file format of models: it reads directories of safetensors shards (Hugging Face checkpoints, published
// Colibri containers, and our own containers), says what is in them, and writes our own. It decides which tensors a model must have
// and how the numbers of each are stored, checks all of that before anything large is allocated, and answers with plain
// descriptions: weights as spans of files, experts as reads into a slot of memory.
//
// It must never know of engines, backends, caches, tokens or windows; everything above it works from its descriptions.
// docs/containers.md describes the bytes.
package container
