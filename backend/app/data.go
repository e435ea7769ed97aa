package app

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strings"

	"colibri/backend/licences"
)

// Policy is the content policy of every response: nothing but the program's own files, no frames, no remote anything.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; " +
	"connect-src 'self'; media-src 'none'; worker-src 'none'; frame-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'"

// Middleware serves bulk data below /data/ beside the page's files: results of bound methods pass through the script engine twice,
// fetched ones do not. It sets the content policy on everything.
func (a *App) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", Policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		name, ok := strings.CutPrefix(r.URL.Path, "/data/")
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		switch name {
		case "state":
			v, err := a.State()
			writeData(w, v, err)
		case "transcript":
			v, err := a.Transcript(r.URL.Query().Get("id"))
			writeData(w, v, err)
		case "licences":
			writeData(w, licences.All(), nil)
		case "atlas":
			a.writeAtlas(w)
		default:
			http.Error(w, "there is no such data", http.StatusNotFound)
		}
	})
}

func writeData[T any](w http.ResponseWriter, v T, err error) {
	if err != nil {
		http.Error(w, Reading.say(err), http.StatusInternalServerError)
		return
	}
	raw, err := json.Marshal(Finite(v))
	if err != nil {
		http.Error(w, Reading.say(err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

// writeAtlas sends layers and experts, then the uses of each expert (all uint32, little-endian), then a tier byte for each.
func (a *App) writeAtlas(w http.ResponseWriter) {
	atlas := a.Atlas()
	n := atlas.Layers * atlas.Experts
	out := make([]byte, 8, 8+5*n)
	binary.LittleEndian.PutUint32(out[0:], uint32(atlas.Layers))
	binary.LittleEndian.PutUint32(out[4:], uint32(atlas.Experts))
	for _, uses := range atlas.Heat {
		out = binary.LittleEndian.AppendUint32(out, uses)
	}
	out = append(out, atlas.Tiers...)
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(out)
}
