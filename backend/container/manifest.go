package container

// manifestName marks a folder whose conversion has not finished.
const manifestName = "colibri-convert.json"
