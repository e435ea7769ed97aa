package container

const seekHole = 3 // SEEK_HOLE, <sys/unistd.h>
