package app

import (
	"math"
	"reflect"
)

// finite returns v with every NaN and infinity in it replaced by zero. Encoding such a number as JSON fails, and Wails ends the
// program when the result of a bound method cannot be encoded.
func finite(v any) any {
	if v == nil {
		return nil
	}
	in := reflect.ValueOf(v)
	out := reflect.New(in.Type()).Elem()
	out.Set(in)
	makeFinite(out)
	return out.Interface()
}

// Finite is finite for the results of bound methods.
func Finite[T any](v T) T {
	makeFinite(reflect.ValueOf(&v).Elem())
	return v
}

// makeFinite cleans an addressable value. What it must change behind a pointer or in a slice it copies first: others may be reading it.
func makeFinite(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			v.SetFloat(0)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				makeFinite(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() && holdsFloats(v.Type()) {
			fresh := reflect.New(v.Type().Elem())
			fresh.Elem().Set(v.Elem())
			makeFinite(fresh.Elem())
			v.Set(fresh)
		}
	case reflect.Slice:
		if !v.IsNil() && holdsFloats(v.Type()) {
			fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(fresh, v)
			for i := range fresh.Len() {
				makeFinite(fresh.Index(i))
			}
			v.Set(fresh)
		}
	}
}

// holdsFloats says whether a value of the type can contain a floating-point number in the fields that are encoded.
func holdsFloats(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsFloats(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() && holdsFloats(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}
