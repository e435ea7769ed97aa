package jinja

// The syntax tree. Every expression knows how to evaluate itself, every statement how to run (see run.go and eval.go).

type expression interface {
	eval(r *render, s *scope) (value, error)
}

type statement interface {
	run(r *render, s *scope) error
}

type (
	literal struct{ value value }
	name    struct{ name string }
	listOf  struct {
		items []expression
		tuple bool
	}
	dictOf struct{ keys, values []expression }
	unary  struct {
		op      string
		operand expression
	}
	binary struct {
		op          string
		left, right expression
	}
	comparison struct {
		first expression
		ops   []string
		rest  []expression
	}
	conditional struct{ condition, yes, no expression } // no may be nil
	member      struct {
		of   expression
		name string
	}
	index struct{ of, at expression }
	slice struct{ of, from, to, step expression } // parts may be nil
	call  struct {
		of   expression
		args callArguments
	}
	filtered struct {
		of     expression
		name   string
		filter filter
		args   callArguments
	}
	tested struct {
		of   expression
		test test
		args callArguments
	}
)

type callArguments struct {
	positional []expression
	names      []string
	named      []expression
}

type (
	textOut  struct{ text string }
	output   struct{ expression expression }
	captured struct{ body []statement } // what the body writes, as an expression
	atLine   struct {                   // an error inside happened at this line
		line int
		statement
	}
	ifElse struct {
		condition expression
		yes, no   []statement
	}
	forLoop struct {
		targets    []string
		over       expression
		condition  expression // nil: all
		body, none []statement
		recursive  bool
	}
	assign struct {
		targets []target
		value   expression
	}
	macro struct {
		name       string
		parameters []string
		defaults   []expression // of the last parameters
		body       []statement
	}
	callBlock struct {
		call  *call
		macro *macro // the body, as caller
	}
	filterBlock struct {
		apply func(of expression) expression
		body  []statement
	}
	with struct {
		names  []string
		values []expression
		body   []statement
	}
	loopControl struct{ signal error }
)

type target struct{ name, member string } // member "": the name itself
