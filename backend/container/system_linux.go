package container

const seekHole = 4 // SEEK_HOLE, <linux/fs.h>
