package residency

// placeholder until tuned
func NewForecast(shape Shape) Policy { return NewLFU(shape) }
