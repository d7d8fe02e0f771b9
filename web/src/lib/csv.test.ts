import { expect, it } from 'vitest'
import { csv } from './csv'

it('quotes what needs it and defuses formulas', () => {
  expect(csv(['a', 'b'], [['x,"y"', 1.5], ['=1+1', null]])).toBe('a,b\r\n"x,""y""",1.5\r\n\'=1+1,\r\n')
})
