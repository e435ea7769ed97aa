package jinja

import (
	"fmt"
	"slices"
	"strconv"
)

// parser reads the tokens of one template.
type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // for blocks around the current place
}

// fault is how the parser gives up; parse catches it.
type fault struct{ err error }

func (p *parser) fail(format string, args ...any) {
	panic(fault{fmt.Errorf("line %d: %s", p.peek().line, fmt.Sprintf(format, args...))})
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEnd {
		p.at++
	}
	return t
}

func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && (text == "" || t.text == text)
}

func (p *parser) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) operator(text string) bool { return p.take(tokOperator, text) }
func (p *parser) word(text string) bool     { return p.take(tokName, text) }

func (p *parser) need(kind tokenKind, text, what string) token {
	if !p.is(kind, text) {
		p.fail("expected %s%s", what, p.found())
	}
	return p.next()
}

func (p *parser) found() string {
	t := p.peek()
	switch t.kind {
	case tokName, tokOperator, tokInteger, tokFloat:
		return fmt.Sprintf(", found %q", t.text)
	case tokString:
		return ", found a string"
	}
	return ""
}

// nest bounds recursion; the result undoes it.
func (p *parser) nest() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d expressions or blocks in each other", maxDepth)
	}
	return func() { p.depth-- }
}

func parse(tokens []token) (body []statement, err error) {
	p := &parser{tokens: tokens}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fault:
			err = r.err
		default:
			panic(r)
		}
	}()
	body, _ = p.statements()
	if p.peek().kind != tokEnd {
		p.fail("%q has no beginning", p.peek().text)
	}
	return body, nil
}

// statements reads up to one of the words that end a block, which is left to be read, or the end.
func (p *parser) statements(ends ...string) (body []statement, end string) {
	defer p.nest()()
	for {
		t := p.next()
		switch t.kind {
		case tokEnd:
			if len(ends) > 0 {
				p.fail("expected %s before the end", ends[len(ends)-1])
			}
			return body, ""
		case tokText:
			body = append(body, textOut{t.text})
		case tokOutputBegin:
			body = append(body, atLine{t.line, output{p.tuple(true)}})
			p.need(tokOutputEnd, "", "}}")
		case tokBlockBegin:
			word := p.need(tokName, "", "the name of a statement").text
			if slices.Contains(ends, word) {
				return body, word
			}
			if s := p.statement(word); s != nil {
				body = append(body, atLine{t.line, s})
			}
		}
	}
}

func (p *parser) endTag() { p.need(tokBlockEnd, "", "%}") }

func (p *parser) statement(word string) statement {
	switch word {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement()
	case "set":
		return p.setStatement()
	case "macro":
		m := &macro{name: p.need(tokName, "", "the name of the macro").text}
		p.signature(m)
		p.endTag()
		p.macroBody(m, "endmacro")
		return m
	case "call":
		m := &macro{name: "caller"}
		if p.is(tokOperator, "(") {
			p.signature(m)
		}
		c, ok := p.expression().(*call)
		if !ok {
			p.fail("call needs the call of a macro")
		}
		p.endTag()
		p.macroBody(m, "endcall")
		return &callBlock{c, m}
	case "filter":
		apply := p.filterChain()
		p.endTag()
		body, _ := p.statements("endfilter")
		p.endTag()
		return &filterBlock{apply, body}
	case "with":
		w := &with{}
		for !p.is(tokBlockEnd, "") {
			if len(w.names) > 0 {
				p.need(tokOperator, ",", "a comma")
			}
			w.names = append(w.names, p.need(tokName, "", "a name").text)
			p.need(tokOperator, "=", "=")
			w.values = append(w.values, p.expression())
		}
		p.endTag()
		w.body, _ = p.statements("endwith")
		p.endTag()
		return w
	case "generation": // Hugging Face's mark for training data; means nothing here
		p.endTag()
		body, _ := p.statements("endgeneration")
		p.endTag()
		return &ifElse{literal{true}, body, nil}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", word)
		}
		p.endTag()
		if word == "break" {
			return loopControl{errBreak}
		}
		return loopControl{errContinue}
	case "include", "import", "from", "extends", "block":
		p.fail("%s is not for chat templates: they cannot load other templates", word)
	}
	p.fail("unknown statement %q", word)
	return nil
}

func (p *parser) ifStatement() statement {
	defer p.nest()()
	s := &ifElse{condition: p.tuple(false)}
	p.endTag()
	var end string
	s.yes, end = p.statements("elif", "else", "endif")
	switch end {
	case "elif":
		s.no = []statement{p.ifStatement()}
		return s
	case "else":
		p.endTag()
		s.no, _ = p.statements("endif")
	}
	p.endTag()
	return s
}

func (p *parser) forStatement() statement {
	s := &forLoop{}
	parenthesised := p.operator("(")
	for {
		s.targets = append(s.targets, p.need(tokName, "", "the name of the loop's variable").text)
		if !p.operator(",") {
			break
		}
	}
	if parenthesised {
		p.need(tokOperator, ")", ")")
	}
	p.need(tokName, "in", "in")
	s.over = p.tupleOf(p.or)
	if p.word("if") {
		s.condition = p.expression()
	}
	s.recursive = p.word("recursive")
	p.endTag()
	p.loops++
	var end string
	s.body, end = p.statements("else", "endfor")
	p.loops--
	if end == "else" {
		p.endTag()
		s.none, _ = p.statements("endfor")
	}
	p.endTag()
	return s
}

func (p *parser) setStatement() statement {
	s := &assign{}
	parenthesised := p.operator("(")
	for {
		t := target{name: p.need(tokName, "", "a name").text}
		if p.operator(".") {
			t.member = p.need(tokName, "", "a name").text
		}
		s.targets = append(s.targets, t)
		if !p.operator(",") {
			break
		}
	}
	if parenthesised {
		p.need(tokOperator, ")", ")")
	}
	if p.operator("=") {
		s.value = p.tuple(true)
		p.endTag()
		return s
	}
	apply := func(of expression) expression { return of }
	if p.operator("|") {
		apply = p.filterChain()
	}
	p.endTag()
	body, _ := p.statements("endset")
	p.endTag()
	if len(s.targets) != 1 {
		p.fail("a block can be assigned to one name only")
	}
	s.value = apply(&captured{body})
	return s
}

func (p *parser) signature(m *macro) {
	p.need(tokOperator, "(", "(")
	for !p.operator(")") {
		if len(m.parameters) > 0 {
			p.need(tokOperator, ",", "a comma")
			if p.operator(")") {
				return
			}
		}
		m.parameters = append(m.parameters, p.need(tokName, "", "the name of a parameter").text)
		if p.operator("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("a parameter without a default follows one with")
		}
	}
}

func (p *parser) macroBody(m *macro, end string) {
	loops := p.loops
	p.loops = 0
	m.body, _ = p.statements(end)
	p.loops = loops
	if p.is(tokName, "") { // {% endmacro name %}
		p.next()
	}
	p.endTag()
}

// filterChain reads name(args)|name… for the filter and set blocks.
func (p *parser) filterChain() func(of expression) expression {
	var chain []filtered
	for {
		chain = append(chain, p.filter(nil))
		if !p.operator("|") {
			break
		}
	}
	return func(of expression) expression {
		for _, f := range chain {
			f.of = of
			of = &f
		}
		return of
	}
}

// tuple reads an expression, or several with commas between.
func (p *parser) tuple(conditional bool) expression {
	if conditional {
		return p.tupleOf(p.expression)
	}
	return p.tupleOf(p.or)
}

func (p *parser) tupleOf(element func() expression) expression {
	first := element()
	if !p.is(tokOperator, ",") {
		return first
	}
	list := &listOf{items: []expression{first}, tuple: true}
	for p.operator(",") {
		if t := p.peek(); t.kind == tokOutputEnd || t.kind == tokBlockEnd || t.kind == tokOperator && (t.text == ")" || t.text == "=") {
			break
		}
		list.items = append(list.items, element())
	}
	return list
}

func (p *parser) expression() expression {
	defer p.nest()()
	e := p.or()
	for p.word("if") {
		c := &conditional{condition: p.or(), yes: e}
		if p.word("else") {
			c.no = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expression {
	e := p.and()
	for p.word("or") {
		e = &binary{"or", e, p.and()}
	}
	return e
}

func (p *parser) and() expression {
	e := p.not()
	for p.word("and") {
		e = &binary{"and", e, p.not()}
	}
	return e
}

func (p *parser) not() expression {
	if p.word("not") {
		defer p.nest()()
		return &unary{"not", p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expression {
	c := &comparison{first: p.sum()}
	for {
		t := p.peek()
		op := ""
		switch {
		case t.kind == tokOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), t.kind == tokName && t.text == "in":
			op = t.text
			p.next()
		case t.kind == tokName && t.text == "not" && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	if len(c.ops) == 0 {
		return c.first
	}
	return c
}

// left reads operands of one kind with operators of equal rank between.
func (p *parser) left(operand func() expression, ops ...string) expression {
	e := operand()
	for {
		t := p.peek()
		if t.kind != tokOperator || !slices.Contains(ops, t.text) {
			return e
		}
		p.next()
		e = &binary{t.text, e, operand()}
	}
}

func (p *parser) sum() expression     { return p.left(p.concat, "+", "-") }
func (p *parser) concat() expression  { return p.left(p.product, "~") }
func (p *parser) product() expression { return p.left(p.power, "*", "/", "//", "%") }
func (p *parser) power() expression {
	return p.left(func() expression { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilters bool) expression {
	defer p.nest()()
	var e expression
	switch {
	case p.operator("-"):
		e = &unary{"-", p.unary(false)}
	case p.operator("+"):
		e = &unary{"+", p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilters {
		e = p.filtersAndTests(e)
	}
	return e
}

func (p *parser) primary() expression {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return literal{true}
		case "false", "False":
			return literal{false}
		case "none", "None":
			return literal{nil}
		}
		return &name{t.text}
	case tokString:
		s := t.text
		for p.is(tokString, "") {
			s += p.next().text
		}
		return literal{s}
	case tokInteger:
		n, err := strconv.Atoi(t.text)
		if err != nil {
			p.fail("the number %s is too large", t.text)
		}
		return literal{n}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.fail("the number %s is too large", t.text)
		}
		return literal{f}
	case tokOperator:
		switch t.text {
		case "(":
			if p.operator(")") {
				return &listOf{tuple: true}
			}
			e := p.tuple(true)
			p.need(tokOperator, ")", ")")
			return e
		case "[":
			list := &listOf{}
			for !p.operator("]") {
				if len(list.items) > 0 {
					p.need(tokOperator, ",", "a comma")
					if p.operator("]") {
						break
					}
				}
				list.items = append(list.items, p.expression())
			}
			return list
		case "{":
			dict := &dictOf{}
			for !p.operator("}") {
				if len(dict.keys) > 0 {
					p.need(tokOperator, ",", "a comma")
					if p.operator("}") {
						break
					}
				}
				dict.keys = append(dict.keys, p.expression())
				p.need(tokOperator, ":", "a colon")
				dict.values = append(dict.values, p.expression())
			}
			return dict
		}
	}
	p.at = max(p.at-1, 0)
	p.fail("expected a value%s", p.found())
	return nil
}

func (p *parser) postfix(e expression) expression {
	for {
		switch {
		case p.operator("."):
			t := p.next()
			switch t.kind {
			case tokName:
				e = &member{e, t.text}
			case tokInteger:
				n, err := strconv.Atoi(t.text)
				if err != nil {
					p.fail("the number %s is too large", t.text)
				}
				e = &index{e, literal{n}}
			default:
				p.fail("expected a name after the dot")
			}
		case p.operator("["):
			e = p.subscript(e)
		case p.is(tokOperator, "("):
			e = &call{e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expression) expression {
	var parts [3]expression
	part, sliced := 0, false
	for !p.operator("]") {
		if p.operator(":") {
			sliced = true
			if part++; part > 2 {
				p.fail("a slice has three parts at most")
			}
			continue
		}
		if parts[part] != nil {
			p.fail("expected ]%s", p.found())
		}
		parts[part] = p.tuple(true)
	}
	if sliced {
		return &slice{of, parts[0], parts[1], parts[2]}
	}
	if parts[0] == nil {
		p.fail("expected an index")
	}
	return &index{of, parts[0]}
}

func (p *parser) arguments() (a callArguments) {
	p.need(tokOperator, "(", "(")
	for first := true; !p.operator(")"); first = false {
		if !first {
			p.need(tokOperator, ",", "a comma")
			if p.operator(")") {
				break
			}
		}
		if t := p.peek(); t.kind == tokName && p.tokens[p.at+1].kind == tokOperator && p.tokens[p.at+1].text == "=" {
			p.at += 2
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression())
			continue
		}
		if len(a.names) > 0 {
			p.fail("an argument without a name follows one with")
		}
		a.positional = append(a.positional, p.expression())
	}
	return a
}

func (p *parser) filtersAndTests(e expression) expression {
	for {
		switch {
		case p.operator("|"):
			f := p.filter(e)
			e = &f
		case p.word("is"):
			e = p.test(e)
		case p.is(tokOperator, "("):
			e = &call{e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) filter(of expression) filtered {
	word := p.need(tokName, "", "the name of a filter").text
	f := filtered{of: of, name: word, filter: filters[word]}
	if f.filter == nil {
		p.fail("there is no filter %q", word)
	}
	if p.is(tokOperator, "(") {
		f.args = p.arguments()
	}
	return f
}

func (p *parser) test(of expression) expression {
	negated := p.word("not")
	word := p.need(tokName, "", "the name of a test").text
	t := &tested{of: of, test: tests[word]}
	if t.test == nil {
		p.fail("there is no test %q", word)
	}
	switch next := p.peek(); {
	case p.is(tokOperator, "("):
		t.args = p.arguments()
	case next.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not", "recursive"}, next.text),
		next.kind == tokString, next.kind == tokInteger, next.kind == tokFloat,
		next.kind == tokOperator && (next.text == "[" || next.text == "{"):
		t.args.positional = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &unary{"not", t}
	}
	return t
}
