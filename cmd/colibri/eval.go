package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func evalCommand(ctx context.Context, args []string, out, notes io.Writer) (err error) {
	m := modelFlags{precise: true}
	flags := flag.NewFlagSet("eval", flag.ContinueOnError)
	m.register(flags)
	idsPath := flags.String("ids", "", "token ids: a JSON `FILE` with a list")
	logitsPath := flags.String("logits", "", "write the logits of every position to this safetensors `FILE`")
	textPath := flags.String("text", "", "print the perplexity of this text `FILE`")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case (*idsPath == "") != (*logitsPath == ""), (*idsPath == "") == (*textPath == ""):
		return usagef("give --ids FILE with --logits OUT, or --text FILE")
	}
	model, err := m.load(ctx, notes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()

	if *textPath != "" {
		text, err := os.ReadFile(*textPath)
		if err != nil {
			return err
		}
		if model.Tokenizer() == nil {
			return errors.New("the model has no tokenizer.json, so it cannot read text")
		}
		ids, err := model.Tokenizer().Encode(string(text))
		if err != nil {
			return err
		}
		p, err := model.Perplexity(ctx, ids, nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "perplexity %.4f (%.4f nats a token over %d tokens)\n", p.Perplexity, p.NatsTotal/float64(p.Tokens), p.Tokens)
		return nil
	}
	ids, err := readIDs(*idsPath, model.Config().Vocabulary)
	if err != nil {
		return err
	}
	file, err := createLogitsFile(*logitsPath, len(ids), model.Config().Vocabulary)
	if err != nil {
		return err
	}
	err = model.Logits(ctx, ids, nil, func(_ int, logits []float32) error { return file.append(logits) })
	return errors.Join(err, file.close())
}
